// Who watches is told of every op, forward and backward, and of nothing twice.
#include "autograd/profile.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "autograd/ops/elementwise.h"
#include "autograd/tape.h"

namespace mixgrad {
namespace {

/// How often each piece of work was reported, while it lives.
class Counted {
 public:
  Counted() {
    set_span_observer([this](std::string_view name, Phase phase, double seconds) {
      CHECK(seconds >= 0);
      ++counts[{phase, std::string(name)}];
    });
  }
  ~Counted() { set_span_observer({}); }

  std::map<std::pair<Phase, std::string>, int> counts;
};

}  // namespace

TEST_CASE("autograd/profile: each op is reported forward and backward") {
  const Variable x(Tensor::full({3}, 2, DType::float64), true);
  Counted watched;
  backward(sum(multiply(x, scale(x, 0.5))));
  CHECK(watched.counts == std::map<std::pair<Phase, std::string>, int>{
                              {{Phase::forward, "scale"}, 1},
                              {{Phase::forward, "multiply"}, 1},
                              {{Phase::forward, "sum"}, 1},
                              {{Phase::backward, "sum"}, 1},
                              {{Phase::backward, "multiply"}, 1},
                              {{Phase::backward, "scale"}, 1},
                              {{Phase::backward, "sum of gradients"}, 1},  // both reach x
                          });
}

TEST_CASE("autograd/profile: work within work belongs to the outer piece alone") {
  Counted watched;
  {
    const Span outer("outer", Phase::update);
    const Span inner("inner", Phase::forward);
  }
  { const Span next("next", Phase::forward); }
  CHECK(watched.counts == std::map<std::pair<Phase, std::string>, int>{{{Phase::update, "outer"}, 1},
                                                                       {{Phase::forward, "next"}, 1}});
}

TEST_CASE("autograd/profile: an op that throws is over") {
  Counted watched;
  try {
    const Span span("failing", Phase::forward);
    throw Error("no");
  } catch (const Error&) {
  }
  { const Span next("next", Phase::forward); }
  CHECK(watched.counts.size() == 2);
}

TEST_CASE("autograd/profile: nothing is reported when nobody watches any more") {
  int calls = 0;
  set_span_observer([&](std::string_view, Phase, double) { ++calls; });
  { const Span span("watched", Phase::forward); }
  set_span_observer({});
  { const Span span("unwatched", Phase::forward); }
  CHECK(calls == 1);
}

}  // namespace mixgrad
