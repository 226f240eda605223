// Error messages of the operators.
//
// Every refused argument is reported in one form, the same that the Python checks use:
//   fp4aot::<operator>: argument '<name>': got <what>, expected <what>; <what to do>
// The exceptions cross into libtorch, which turns them into a Python RuntimeError.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace fp4aot {

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

[[noreturn]] inline void fail(const char* operator_name, const std::string& message) {
  throw std::runtime_error(text("fp4aot::", operator_name, ": ", message));
}

[[noreturn]] inline void argument_error(const char* operator_name, const char* argument,
                                        const std::string& got, const std::string& expected,
                                        const std::string& what_to_do) {
  fail(operator_name,
       text("argument '", argument, "': got ", got, ", expected ", expected, "; ", what_to_do));
}

}  // namespace fp4aot
