// train: learns a language model from a text.
#include "train/cli.h"
#include "train/options.h"
#include "train/trainer.h"

int main(int argc, char** argv) {
  return mixgrad::run_program(argc, argv, [](int count, char** arguments) {
    mixgrad::TrainOptions options;
    if (!mixgrad::parse_train_options(count, arguments, options)) return 0;
    return mixgrad::Trainer(options).run();
  });
}
