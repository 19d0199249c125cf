#include "tensor/cpu_info.h"

#include <cblas.h>
#include <omp.h>
#include <sys/resource.h>

#include "tensor/error.h"

namespace mixgrad {

std::string blas_description() {
  return str(openblas_get_config(), ", ", openblas_get_corename(), " kernels");
}

std::string cpu_description() {
#if defined(__AVX512F__)
  const char* vectors = "AVX-512";
#elif defined(__AVX2__)
  const char* vectors = "AVX2";
#else
  const char* vectors = "baseline vectors";
#endif
  return str(omp_get_num_procs(), " hardware threads, ", vectors);
}

int thread_count() { return omp_get_max_threads(); }
void set_thread_count(int threads) { omp_set_num_threads(threads); }
int64_t most_threads() { return 4 * int64_t{omp_get_num_procs()}; }

int64_t process_peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace mixgrad
