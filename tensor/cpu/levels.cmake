# A build for any x86-64 processor: the kernels become a shared library that is compiled for three levels of
# instructions. The dynamic loader takes the best one that the processor has (glibc 2.33 or later; an older one takes
# the first):
#
#   lib/libmixgrad_kernels.so                           every x86-64
#   lib/glibc-hwcaps/x86-64-v3/libmixgrad_kernels.so    AVX2, FMA
#   lib/glibc-hwcaps/x86-64-v4/libmixgrad_kernels.so    AVX-512
#
# What the kernels need of tensor/, memory and threads, they take from the program that loads them.
file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tensor/cpu/*.cpp)
foreach(level x86-64 x86-64-v3 x86-64-v4)
  set(library mixgrad_kernels_${level})
  add_library(${library} SHARED ${kernels})
  set(folder ${CMAKE_BINARY_DIR}/lib)
  if(NOT level STREQUAL x86-64)
    string(APPEND folder /glibc-hwcaps/${level})
  endif()
  set_target_properties(${library} PROPERTIES OUTPUT_NAME mixgrad_kernels LIBRARY_OUTPUT_DIRECTORY ${folder})
  target_link_libraries(${library} PRIVATE mixgrad_options ${OPENBLAS_LIBRARY})
  target_include_directories(${library} SYSTEM PRIVATE ${OPENBLAS_INCLUDE_DIR})
  target_compile_options(${library} PRIVATE -march=${level} ${short_moves} -fno-semantic-interposition)
  # Inline functions and constants may differ from level to level, so each library keeps to its own, though the program
  # and other libraries have some of the same names.
  target_link_options(${library} PRIVATE -Wl,-Bsymbolic)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${library} PRIVATE -fno-gnu-unique)
  endif()
endforeach()
target_link_libraries(mixgrad_tensor PUBLIC mixgrad_kernels_x86-64)
add_dependencies(mixgrad_tensor mixgrad_kernels_x86-64-v3 mixgrad_kernels_x86-64-v4)
