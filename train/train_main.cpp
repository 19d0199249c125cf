// train: learns a language model from a text.
#include "train/cli.h"
#include "train/options.h"
#include "train/signals.h"
#include "train/trainer.h"

int main(int argc, char** argv) {
  return mixgrad::run_program(argc, argv, [](int count, char** arguments) {
    mixgrad::TrainOptions options;
    if (!mixgrad::parse_train_options(count, arguments, options)) return 0;
    mixgrad::Trainer trainer(options);
    mixgrad::catch_interrupts();  // from here on there is something to save
    return trainer.run();
  });
}
