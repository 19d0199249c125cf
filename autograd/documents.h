// Packed documents: several texts in one row of a batch, that must not see each other.
#pragma once

#include <string_view>

#include "tensor/tensor.h"

namespace mixgrad {

/// `documents` says where texts begin, int32 [B, T]: not 0 for the first token of each. What stands before
/// the first of these continues what came before the row. Undefined: no text begins. Padding is a text of its
/// own. On any device. Throws Error, in the name of `where`, for another type or shape.
inline void check_documents(std::string_view where, const Tensor& documents, int64_t batch, int64_t length) {
  if (!documents.defined()) return;
  const Shape tokens{batch, length};
  check(documents.dtype() == DType::int32 && documents.shape() == tokens, "[", where, "] documents ",
        documents.dtype(), " ", documents.shape(), "; allowed: int32 ", tokens);
}

}  // namespace mixgrad
