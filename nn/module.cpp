#include "nn/module.h"

namespace mixgrad {

void Module::declare(std::string name, Variable& parameter, Decay decay) {
  members_.push_back({std::move(name), &parameter, decay == Decay::yes, nullptr});
}

void Module::declare(std::string name, Module& child) {
  members_.push_back({std::move(name), nullptr, false, &child});
}

void Module::collect(const std::string& prefix, std::vector<Parameter>& found) {
  for (const Member& member : members_) {
    if (member.child != nullptr)
      member.child->collect(prefix + member.name + ".", found);
    else
      found.push_back({prefix + member.name, member.parameter, member.decays});
  }
}

std::vector<Parameter> Module::parameters() {
  std::vector<Parameter> found;
  collect("", found);
  return found;
}

void Module::zero_grad() {
  for (const Parameter& parameter : parameters()) parameter.variable->zero_grad();
}

int64_t Module::parameter_count() {
  int64_t count = 0;
  for (const Parameter& parameter : parameters()) count += parameter.variable->value().elements();
  return count;
}

}  // namespace mixgrad
