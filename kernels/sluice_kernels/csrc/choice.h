// Which variant is in use: the widest that this processor has, unless `use` names another.
#pragma once

#include <string>
#include <vector>

#include "variant.h"

namespace sluice {

const Variant& variant();
std::vector<std::string> runnable();
void use(const std::string& name);

}  // namespace sluice
