# The kernels for NVIDIA GPUs: which compiler builds them, and the library mixgrad_cuda.
#
# Sets cuda_kind (ON, SIM or OFF), cuda_summary, and the options by which kernels are compiled: nvcc_options for ON,
# simulated_kernel_options for SIM.

include(CheckLanguage)
set(CMAKE_CUDA_ARCHITECTURES 80-real 90 CACHE STRING "GPUs to build for; 90 brings PTX for later ones")

set(cuda_kind ${MIXGRAD_CUDA})
if(cuda_kind STREQUAL AUTO)
  set(cuda_kind SIM)
  if(EXISTS /dev/nvidiactl OR EXISTS /dev/dxg)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      set(cuda_kind ON)
    endif()
  endif()
endif()

file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/kernels/*.cu)
if(cuda_kind STREQUAL ON)
  find_program(NVCC nvcc HINTS $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  if(NOT NVCC AND NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "MIXGRAD_CUDA=ON, but there is no nvcc; set PATH or CMAKE_CUDA_COMPILER, or use SIM")
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${NVCC})
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 doesn't know that nvcc 12 and later have C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  get_target_property(cxx_options mixgrad_options INTERFACE_COMPILE_OPTIONS)  # nvcc knows none of them
  set_property(TARGET mixgrad_options PROPERTY INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CXX>:${cxx_options}>")
  find_package(CUDAToolkit REQUIRED)
  add_library(mixgrad_cuda STATIC ${kernels} ${PROJECT_SOURCE_DIR}/cuda/allocator.cpp
              ${PROJECT_SOURCE_DIR}/cuda/runtime_nvidia.cpp)
  set(nvcc_options --expt-relaxed-constexpr --extended-lambda -lineinfo -diag-suppress=554)
  target_compile_options(mixgrad_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${nvcc_options}>")
  target_link_libraries(mixgrad_cuda PUBLIC mixgrad_tensor CUDA::cudart_static)
  if(TARGET CUDA::cublas)  # else products are computed by a kernel of our own
    target_link_libraries(mixgrad_cuda PUBLIC CUDA::cublas)
    target_compile_definitions(mixgrad_cuda PRIVATE MIXGRAD_CUBLAS)
  endif()
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", " architectures)
  target_compile_definitions(mixgrad_cuda PRIVATE MIXGRAD_CUDA_ARCHITECTURES="${architectures}")
  set(cuda_summary "toolkit ${CUDAToolkit_VERSION}, architectures ${architectures}")
elseif(cuda_kind STREQUAL SIM)
  # The compiler calls a function at each access, as for ThreadSanitizer, but it is the simulator's, which sees to
  # addresses and their alignment itself.
  set(simulated_kernel_options -fno-sanitize=address,alignment -fsanitize=thread -Wno-unknown-pragmas
                               "$<$<NOT:$<CONFIG:Debug>>:-O2;-g1>")
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)  # else a read just before a write of the same place is left out
    list(APPEND simulated_kernel_options "SHELL:-mllvm -tsan-instrument-read-before-write=1")
  endif()
  file(GLOB simulator CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/simulator/*.cpp)
  set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${simulated_kernel_options}")
  # It runs on stacks of its own, of which no sanitizer knows.
  set_source_files_properties(${simulator} PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all;-O2;-g")
  add_library(mixgrad_cuda STATIC ${kernels} ${PROJECT_SOURCE_DIR}/cuda/allocator.cpp ${simulator})
  target_link_libraries(mixgrad_cuda PUBLIC mixgrad_tensor ${CMAKE_DL_LIBS})
  target_compile_definitions(mixgrad_cuda PUBLIC MIXGRAD_CUDA_SIMULATED)
  set(cuda_summary "simulated on the CPU")
elseif(NOT cuda_kind STREQUAL OFF)
  message(FATAL_ERROR "MIXGRAD_CUDA=${MIXGRAD_CUDA} is unknown; allowed: AUTO, ON, SIM, OFF")
endif()
if(cuda_kind STREQUAL OFF)
  set(cuda_summary "off")
else()
  # Tensors call the kernels, whose scratch memory comes from the tensors' allocator: each library needs the other.
  target_link_libraries(mixgrad_tensor PUBLIC mixgrad_cuda)
  target_compile_definitions(mixgrad_tensor PUBLIC MIXGRAD_CUDA)
endif()
