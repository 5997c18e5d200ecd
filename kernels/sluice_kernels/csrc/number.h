// The two number types of the kernels, and how one becomes the other. Included once a variant: all
// of it is local to the translation unit, so that no code of one instruction set serves another.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

struct bf16 {
  uint16_t bits;
};

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float widen(float value) { return value; }

inline float widen(bf16 value) { return bits_to_float(uint32_t{value.bits} << 16); }

inline void narrow(float value, float& to) { to = value; }

// Rounds to the nearest, ties to even; no number stays no number.
inline void narrow(float value, bf16& to) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool is_number = (bits & 0x7fffffff) <= 0x7f800000;
  to.bits = static_cast<uint16_t>(is_number ? rounded : 0x7fc0);
}

// e^x within 2 units in the last place for x in [-87, 88], without a branch. Below -87 the result is
// 0, above 88 e^88; no number gives no number.
inline float exponential(float x) {
  const float low = x < -87.0f ? -87.0f : x;
  const float bounded = low > 88.0f ? 88.0f : low;
  // Adding and taking away 1.5 x 2^23 leaves the nearest whole number.
  const float magic = 12582912.0f;
  const float whole = (bounded * 1.44269504f + magic) - magic;
  // ln 2 in two parts: their products with a small whole number are exact.
  const float rest = (bounded - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float sum = 1.9875691500e-4f;
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = (sum * rest) * rest + rest + 1.0f;
  const uint32_t power = static_cast<uint32_t>(static_cast<int32_t>(whole) + 127) << 23;
  return x < -87.0f ? 0.0f : sum * bits_to_float(power);
}

}  // namespace
