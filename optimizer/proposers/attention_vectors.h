// Vectors of this CPU for attention: exp2, packing, and rows times packed columns. GCC's vector extensions, so that any
// CPU will do; where there are instructions for pairs of bf16, two elements make one unit of 32 bits.
//
// Held: what factors of a product are held in, bf16 where they go in pairs, else fp32 (bf16 and fp16 are widened).
// A packed panel is kLanes columns of a right factor: one row of kLanes units for each unit of the sum's index.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace {

enum { kFloat32, kBFloat16, kFloat16 };

#if defined(__AVX512F__)
constexpr int kLanes = 16, kMostPanels = 4;
#elif defined(__AVX__)
constexpr int kLanes = 8, kMostPanels = 2;
#else
constexpr int kLanes = 4, kMostPanels = 2;
#endif
#if defined(__AVX512BF16__)
constexpr int kUnit = ELEMENT == kBFloat16 ? 2 : 1;  // elements of a unit
#else
constexpr int kUnit = 1;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));
using Element = std::conditional_t<ELEMENT == kFloat32, float, uint16_t>;
using Held = std::conditional_t<kUnit == 2, uint16_t, float>;
constexpr bool kSame = std::is_same_v<Held, Element>;
constexpr int kRow = kLanes * kUnit;  // of Held in a row of a panel

template <typename To>
inline To load(const void* from) {
    To made;
    std::memcpy(&made, from, sizeof(To));
    return made;
}
template <typename From>
inline void store(void* to, From value) {
    std::memcpy(to, &value, sizeof(From));
}
template <typename To, typename From>
inline To bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    return load<To>(&value);
}
inline Floats splat(float x) { return Floats{} + x; }

inline float from_bf16(uint16_t x) { return bits<float>(uint32_t(x) << 16); }
inline float from_fp16(uint16_t x) {
#if defined(__F16C__)
    return _cvtsh_ss(x);
#else
    return float(bits<_Float16>(x));
#endif
}
inline uint16_t to_bf16(float x) {
    const uint32_t u = bits<uint32_t>(x);
    return uint16_t((x != x ? u | 0x400000u : u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
inline uint16_t to_fp16(float x) {
#if defined(__F16C__)
    return _cvtss_sh(x, 0);
#else
    return bits<uint16_t>(_Float16(x));
#endif
}
inline float widened(Element x) {
    if constexpr (ELEMENT == kFloat32) return x;
    else return ELEMENT == kBFloat16 ? from_bf16(x) : from_fp16(x);
}
inline Element narrowed(float x) {
    if constexpr (ELEMENT == kFloat32) return x;
    else return ELEMENT == kBFloat16 ? to_bf16(x) : to_fp16(x);
}
inline Held held(Element x) {
    if constexpr (kSame) return x;
    else return widened(x);
}

// 2^f for f within a half of 0. Minimax polynomials: relative error 2e-7 where results are fp32, else 3e-6.
inline Floats exp2_near(Floats f) {
    if constexpr (ELEMENT == kFloat32) {
        Floats p = f * 1.3276472e-3f + 9.675541e-3f;
        p = p * f + 5.550713e-2f;
        p = p * f + 2.402212e-1f;
        p = p * f + 6.9314694e-1f;
        return p * f + 1.0000001f;
    } else {
        Floats p = f * 9.570102e-3f + 5.591786e-2f;
        p = p * f + 2.4024744e-1f;
        p = p * f + 6.931218e-1f;
        return p * f + 9.999993e-1f;
    }
}

// 2^t for t <= 0; exactly 0 below 2^-126, so that what counts for nothing never becomes subnormal (which would make it
// many times slower). nan comes through.
inline Floats exp2_below(Floats t) {
#if defined(__AVX512F__)
    const __m512 whole = _mm512_roundscale_ps((__m512)t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __mmask16 counts = _mm512_cmp_ps_mask((__m512)t, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return (Floats)_mm512_maskz_scalef_ps(counts, (__m512)exp2_near(t - (Floats)whole), whole);
#else
    const Floats turned = t + 12582912.0f;  // the nearest whole number stands in the low bits
    const Floats power = bits<Floats>((bits<Words>(turned) << 23) + 0x3f800000u);
    return t < -126.0f ? Floats{} : exp2_near(t - (turned - 12582912.0f)) * power;
#endif
}

// Which lanes are meant.
#if defined(__AVX512BW__) && defined(__AVX512VL__)
using Lanes = __mmask16;
inline Lanes first_lanes(int64_t count) { return Lanes((1u << count) - 1); }
inline Lanes nonzero(const int8_t* bytes, Lanes read) {
    return _mm_test_epi8_mask(_mm_maskz_loadu_epi8(read, bytes), _mm_set1_epi8(-1));
}
inline Floats pick(Lanes lanes, Floats yes, Floats no) { return (Floats)_mm512_mask_mov_ps((__m512)no, lanes, (__m512)yes); }
#else
using Lanes = Ints;
inline Lanes first_lanes(int64_t count) {
    Ints lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    return lane < int32_t(count);
}
inline Lanes nonzero(const int8_t* bytes, Lanes read) {
    alignas(64) int8_t plain[kLanes] = {};
    if (read[kLanes - 1]) return __builtin_convertvector(load<Bytes>(bytes), Ints) != 0;
    for (int i = 0; read[i]; ++i) plain[i] = bytes[i];
    return __builtin_convertvector(load<Bytes>(plain), Ints) != 0;
}
inline Floats pick(Lanes lanes, Floats yes, Floats no) { return lanes ? yes : no; }
#endif

// Lanes joined to one: lane 0 of what `join` makes of halves, quarters and so on.
template <int kWidth = kLanes / 2, typename Join>
inline float across(Floats x, Join join) {
    if constexpr (kWidth == 0) {
        return x[0];
    } else {
        Ints from;
        for (int i = 0; i < kLanes; ++i) from[i] = (i + kWidth) % kLanes;
        return across<kWidth / 2>(join(x, __builtin_shuffle(x, from)), join);
    }
}
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }  // passes over nan, which its exponential brings back
inline Floats sum(Floats a, Floats b) { return a + b; }

// Transpose kLanes x kLanes units: blocks of half the size change places, then within them.
template <int kWidth = kLanes / 2>
inline void transpose(Ints (&r)[kLanes]) {
    Ints low, high;
    for (int i = 0; i < kLanes; ++i) {
        low[i] = i & kWidth ? kLanes + i - kWidth : i;
        high[i] = i & kWidth ? kLanes + i : i + kWidth;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
        if (i & kWidth) continue;
        const Ints a = r[i], b = r[i + kWidth];
        r[i] = __builtin_shuffle(a, b, low);
        r[i + kWidth] = __builtin_shuffle(a, b, high);
    }
    if constexpr (kWidth > 1) transpose<kWidth / 2>(r);
}

// `count` elements from `base` as one row of a panel, what is missing as zeros.
inline Ints panel_row(const Element* base, int64_t step, int64_t count) {
    if (step == 1 && count >= kRow) {
        if constexpr (kSame) return load<Ints>(base);
        if constexpr (ELEMENT == kBFloat16 && !kSame) return bits<Ints>(__builtin_convertvector(load<Halves>(base), Words) << 16);
#if defined(__AVX512F__)
        if constexpr (ELEMENT == kFloat16) return (Ints)_mm512_cvtph_ps(load<__m256i>(base));
#endif
    }
    alignas(64) Held plain[kRow] = {};
    for (int64_t i = 0; i < kRow && i < count; ++i) plain[i] = held(base[i * step]);
    return load<Ints>(plain);
}

// Rows of a left factor, `count` of them with `columns` elements each: rows and columns up to `rows` and `width` are zero.
inline void pack_left(const Element* base, int64_t row_step, int64_t step, int64_t count, int64_t columns, int64_t rows,
                      int64_t width, Held* to) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < width; ++c)
            to[r * width + c] = r < count && c < columns ? held(base[r * row_step + c * step]) : Held(0);
}

// kLanes keys, `keys` of them there, to the panel of their `units` units.
inline void pack_keys(const Element* k, int64_t row_step, int64_t step, int64_t keys, int64_t depth, int64_t units, Held* panel) {
    for (int64_t u = 0; u < units; u += kLanes) {
        Ints rows[kLanes];
        for (int64_t n = 0; n < kLanes; ++n)
            rows[n] = n < keys ? panel_row(k + n * row_step + u * kUnit * step, step, depth - u * kUnit) : Ints{};
        transpose(rows);
        for (int64_t i = 0; i < kLanes && u + i < units; ++i) store(panel + (u + i) * kRow, rows[i]);
    }
}

// `units` units of keys, `keys` of them there, to the panel of kLanes columns of values.
inline void pack_values(const Element* v, int64_t row_step, int64_t step, int64_t keys, int64_t columns, int64_t units, Held* panel) {
    for (int64_t u = 0; u < units; ++u) {
        if constexpr (kUnit == 1) {
            store(panel + u * kRow, u < keys ? panel_row(v + u * row_step, step, columns) : Ints{});
        } else {
            auto half = [&](int64_t key) {
                alignas(64) uint16_t plain[kLanes] = {};
                if (key >= keys) return Words{};
                const Element* row = v + key * row_step;
                if (step == 1 && columns >= kLanes) return __builtin_convertvector(load<Halves>(row), Words);
                for (int64_t i = 0; i < kLanes && i < columns; ++i) plain[i] = uint16_t(row[i * step]);
                return __builtin_convertvector(load<Halves>(plain), Words);
            };
            store(panel + u * kRow, half(2 * u) | half(2 * u + 1) << 16);
        }
    }
}

// sum + left * right over one unit: `left` is one unit for all lanes.
inline Floats times(Floats sum, const Held* left, Floats right) {
#if defined(__AVX512BF16__)
    if constexpr (kUnit == 2)
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(load<int32_t>(left)), (__m512bh)right);
#endif
    return sum + splat(load<float>(left)) * right;
}

// Exponentials to weights of the second product.
inline void store_weights(Held* to, Floats x) {
#if defined(__AVX512BF16__)
    if constexpr (kUnit == 2) return store(to, _mm512_cvtneps_pbh((__m512)x));
#endif
    if constexpr (kUnit == 1) store(to, x);
}

template <int kRows, int kPanels>
inline void multiply_block(const Held* left, int64_t left_step, const Held* right, int64_t panel_step, int64_t units,
                           float* out, int64_t out_step, bool more) {
    Floats sums[kRows][kPanels];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p)
            sums[r][p] = Floats{};
    for (int64_t u = 0; u < units; ++u) {
        Floats columns[kPanels];
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) columns[p] = load<Floats>(right + p * panel_step + u * kRow);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int p = 0; p < kPanels; ++p) sums[r][p] = times(sums[r][p], left + r * left_step + u * kUnit, columns[p]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) {
            float* to = out + r * out_step + p * kLanes;
            store(to, more ? load<Floats>(to) + sums[r][p] : sums[r][p]);
        }
}

template <int kPanels>
void multiply_panels(const Held* left, int64_t left_step, int64_t rows, const Held* right, int64_t panel_step,
                     int64_t units, float* out, int64_t out_step, bool more) {
    constexpr int kRows = kPanels <= 2 && kLanes == 16 ? 8 : 4;
    int64_t r = 0;
    for (; r + kRows <= rows; r += kRows)
        multiply_block<kRows, kPanels>(left + r * left_step, left_step, right, panel_step, units, out + r * out_step, out_step, more);
    for (; r < rows; r += 4)
        multiply_block<4, kPanels>(left + r * left_step, left_step, right, panel_step, units, out + r * out_step, out_step, more);
}

// out [rows][panels * kLanes] = left [rows][units] * right, or added to it where there is more in it. rows: by fours.
struct Vectors {
    static constexpr int64_t kRowStep = 4, kUnitStep = 1, kPanelStep = 1;
    static void begin() {}
    static void end() {}
    static void multiply(const Held* left, int64_t left_step, int64_t rows, const Held* right, int64_t panel_step,
                         int64_t panels, int64_t units, float* out, int64_t out_step, bool more) {
        while (panels > 0) {
            const int64_t taken = panels < kMostPanels ? panels : kMostPanels;
            const auto some = taken == 1   ? multiply_panels<1>
                              : taken == 2 ? multiply_panels<2>
                              : taken == 3 ? multiply_panels<3>
                                           : multiply_panels<kMostPanels>;
            some(left, left_step, rows, right, panel_step, units, out, out_step, more);
            right += taken * panel_step;
            out += taken * kLanes;
            panels -= taken;
        }
    }
};

}  // namespace
