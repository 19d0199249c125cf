// Files of named tensors in the safetensors format, which the ecosystem's other tools read too.
//
//   8 bytes   header length, little-endian
//   header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//                    "__metadata__": {"key": "text", ...}}, padded with spaces
//   data      row-major little-endian values; the offsets count from its start and cover it without a hole
//
// The format: https://github.com/huggingface/safetensors
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace mixgrad {

/// Tensors with their names, in an order that means something to their owner.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
/// Notes beside the tensors, as text.
using Metadata = std::map<std::string, std::string>;

struct SafetensorsFile {
  std::map<std::string, Tensor> tensors;  // on the CPU
  Metadata metadata;
};

/// Reads a whole file. Trusts nothing in it: whatever breaks the format, is cut short, or would need more
/// memory than the file has bytes is refused by an Error of one line that names the file. Element types F32,
/// F64, BF16, I32 and I64; at most Shape::max_rank axes.
SafetensorsFile read_safetensors(const std::filesystem::path& path);

/// Writes tensors, which must be contiguous and on the CPU, in the given order, and flushes them to the disk.
/// The same tensors and metadata give the same bytes. Throws Error with path and reason; the file is then
/// incomplete, and read_safetensors refuses it.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata = {});

}  // namespace mixgrad
