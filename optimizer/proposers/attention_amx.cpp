// Attention on one CPU with AMX: softmax(scale * Q K^T + mask) V, bf16 in and out, fp32 between.
// One (batch, head) at a time: K and V are packed once into the tile layout, then 16 query rows go through
// scores, softmax and the second product while they are in the first-level cache.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int kRows = 16;   // query rows of a tile
constexpr int kDepth = 32;  // bf16 values of a tile row

struct alignas(64) Tiles {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

void configure() {
    Tiles tiles;
    for (int i = 0; i < 8; ++i) {
        tiles.bytes[i] = 64;
        tiles.rows[i] = 16;
    }
    _tile_loadconfig(&tiles);
}

// 2^t for t <= 0 by a polynomial of degree 5, relative error under 3e-6; exactly 0 below 2^-126, so that masked lanes
// never become subnormal (which would make them many times slower). nan comes through.
inline __m512 exp2_negative(__m512 t) {
    const __mmask16 seen = _mm512_cmp_ps_mask(t, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(t, n);
    __m512 p = _mm512_set1_ps(1.33335581e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.61812911e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(seen, p, n);
}

// Transpose 16 x 16 values of 32 bits.
inline void transpose(__m512i (&r)[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

// Rows of bf16, `columns` of them from `base`, as they stand: the left operand of a product. Missing rows are zero.
void pack_rows(const uint16_t* base, int64_t row_step, int64_t step, int64_t rows, int64_t columns, uint16_t* tile) {
    for (int64_t r = 0; r < 16; ++r)
        for (int64_t c = 0; c < kDepth; ++c)
            tile[r * kDepth + c] = r < rows && c < columns ? base[r * row_step + c * step] : 0;
}

// 16 keys x 32 values of depth -> the tile whose row r holds, for each key, values 2r and 2r+1.
void pack_keys(const uint16_t* k, int64_t row_step, int64_t step, int64_t keys, int64_t depth, uint32_t* tile) {
    __m512i rows[16];
    if (step == 1 && depth >= kDepth && keys >= 16) {
        for (int n = 0; n < 16; ++n) rows[n] = _mm512_loadu_si512(k + n * row_step);
    } else {
        alignas(64) uint16_t plain[16 * kDepth];
        pack_rows(k, row_step, step, keys, depth, plain);
        for (int n = 0; n < 16; ++n) rows[n] = _mm512_load_si512(plain + n * kDepth);
    }
    transpose(rows);
    for (int r = 0; r < 16; ++r) _mm512_store_si512(tile + r * 16, rows[r]);
}

// 32 keys x 16 values of depth -> the tile whose row r holds, for each value, keys 2r and 2r+1.
void pack_values(const uint16_t* v, int64_t row_step, int64_t step, int64_t keys, int64_t depth, uint32_t* tile) {
    const __mmask16 columns = depth >= 16 ? 0xffff : (1u << depth) - 1;
    auto row = [&](int64_t key) {
        if (key >= keys) return _mm512_setzero_si512();
        if (step == 1) return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(columns, v + key * row_step));
        alignas(64) uint32_t plain[16] = {};
        for (int64_t d = 0; d < 16 && d < depth; ++d) plain[d] = v[key * row_step + d * step];
        return _mm512_load_si512(plain);
    };
    for (int r = 0; r < 16; ++r)
        _mm512_store_si512(tile + r * 16, _mm512_or_si512(row(2 * r), _mm512_slli_epi32(row(2 * r + 1), 16)));
}

// How a mask is looked up: not at all (only the ends of rows), a byte for each key side by side, or any other way.
enum Lookup { kNone, kBytes, kAny };

// What may be seen of one query row, 16 keys at a time.
struct Mask {
    const void* base;
    int64_t kind, step, place, seen;

    // Lanes of keys c to c+15 that are seen at all; a mask of numbers is added elsewhere.
    template <Lookup how>
    inline __mmask16 live(int64_t c) const {
        const __mmask16 inside = c + 16 <= seen ? 0xffff : c >= seen ? 0 : (1u << (seen - c)) - 1;
        if (how == kNone || (how == kAny && kind != 1)) return inside;
        const auto* m = static_cast<const uint8_t*>(base) + place;
        if (how == kBytes)
            return _mm_mask_test_epi8_mask(inside, _mm_maskz_loadu_epi8(inside, m + c), _mm_set1_epi8(-1));
        __mmask16 found = 0;
        for (int64_t i = 0; i < 16; ++i)
            if (inside >> i & 1 && m[(c + i) * step]) found |= 1u << i;
        return found;
    }

    // The numbers to add to keys c to c+15.
    __m512 numbers(int64_t c) const {
        alignas(64) float more[16] = {};
        for (int64_t i = 0; i < 16 && c + i < seen; ++i) {
            const int64_t where = place + (c + i) * step;
            if (kind == 3) {
                more[i] = static_cast<const float*>(base)[where];
            } else {
                const uint32_t bits = uint32_t(static_cast<const uint16_t*>(base)[where]) << 16;
                std::memcpy(more + i, &bits, 4);
            }
        }
        return _mm512_load_ps(more);
    }
};

// The greatest, or the sum, of each of 16 vectors: lane r is that of row r.
template <typename Join>
inline __m512 across(__m512 (&rows)[16], Join join) {
    __m512i turned[16];
    for (int r = 0; r < 16; ++r) turned[r] = _mm512_castps_si512(rows[r]);
    transpose(turned);
    for (int width = 8; width > 0; width /= 2)
        for (int r = 0; r < width; ++r)
            turned[r] = _mm512_castps_si512(join(_mm512_castsi512_ps(turned[r]), _mm512_castsi512_ps(turned[r + width])));
    return _mm512_castsi512_ps(turned[0]);
}

// Scores of 16 rows -> unnormalised weights in bf16; returns one over the sum of each row. Rows go through each pass
// together: one row alone would wait for its own maximum.
template <Lookup how>
__m512 soften(float* __restrict scores, uint16_t* __restrict weights, int64_t padded, const Mask (&masks)[kRows], float scale) {
    const bool adds = how == kAny && masks[0].kind != 1;
    const __m512 by = _mm512_set1_ps(adds ? 1.0f : scale), unit = _mm512_set1_ps((adds ? 1.0f : scale) * 1.44269504f);
    __m512 found[kRows];
    for (int r = 0; r < kRows; ++r) {
        float* line = scores + r * padded;
        const Mask mask = masks[r];
        __m512 top = _mm512_set1_ps(-INFINITY);
        for (int64_t c = 0; c < padded; c += 16) {
            __m512 x = _mm512_load_ps(line + c);
            if (adds) {
                x = _mm512_fmadd_ps(x, _mm512_set1_ps(scale), mask.numbers(c));
                _mm512_store_ps(line + c, x);
            }
            top = _mm512_mask_max_ps(top, mask.live<how>(c), _mm512_mul_ps(x, by), top);
        }
        found[r] = top;
    }
    __m512 most = across(found, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
    // A row with nothing to see keeps finite numbers until it is divided by its sum, which is zero.
    most = _mm512_mask_mov_ps(most, _mm512_cmp_ps_mask(most, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ), _mm512_setzero_ps());
    alignas(64) float shifts[kRows];
    _mm512_store_ps(shifts, _mm512_mul_ps(most, _mm512_set1_ps(-1.44269504f)));
    for (int r = 0; r < kRows; ++r) {
        const __m512 shift = _mm512_set1_ps(shifts[r]);
        const Mask mask = masks[r];
        __m512 sum = _mm512_setzero_ps();
        for (int64_t c = 0; c < padded; c += 16) {
            __m512 e = exp2_negative(_mm512_fmadd_ps(_mm512_load_ps(scores + r * padded + c), unit, shift));
            e = _mm512_maskz_mov_ps(mask.live<how>(c), e);
            sum = _mm512_add_ps(sum, e);
            auto* out = reinterpret_cast<__m256i*>(weights + r * padded + c);
            _mm256_store_si256(out, (__m256i)_mm512_cvtneps_pbh(e));
        }
        found[r] = sum;
    }
    return _mm512_div_ps(_mm512_set1_ps(1.0f), across(found, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); }));
}

}  // namespace

extern "C" {

// Ask the kernel for the tile registers; 0 when they may be used.
int64_t attention_ready() { return syscall(SYS_arch_prctl, 0x1023, 18); }

// size: batch, heads, queries, keys, depth, value depth. Strides in elements: q, k, v and mask (batch, head, row, column),
// out (batch, head, row; columns are dense). mask_kind: 0 none, 1 bool, 2 bf16, 3 fp32, 4 causal.
void attention(const uint16_t* q, const uint16_t* k, const uint16_t* v, const void* mask, uint16_t* out,
               const int64_t* size, const int64_t* qs, const int64_t* ks, const int64_t* vs, const int64_t* ms,
               const int64_t* os, int64_t mask_kind, float scale) {
    const int64_t batch = size[0], heads = size[1], queries = size[2], keys = size[3], depth = size[4], wide = size[5];
    const int64_t key_blocks = (keys + 31) / 32 * 2, depth_tiles = (depth + kDepth - 1) / kDepth;
    const int64_t wide_tiles = (wide + 15) / 16, padded = key_blocks * 16;
#pragma omp parallel
    {
        auto room = [](int64_t bytes) { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); };
        auto* packed_k = static_cast<uint32_t*>(room(key_blocks * depth_tiles * 1024));
        auto* packed_v = static_cast<uint32_t*>(room(key_blocks / 2 * wide_tiles * 1024));
        auto* rows_q = static_cast<uint16_t*>(room(depth_tiles * 1024));
        auto* scores = static_cast<float*>(room(kRows * padded * 4));
        auto* weights = static_cast<uint16_t*>(room(kRows * padded * 2));
        auto* result = static_cast<float*>(room(wide_tiles * 1024));
        configure();
#pragma omp for schedule(static)
        for (int64_t bh = 0; bh < batch * heads; ++bh) {
            const int64_t b = bh / heads, h = bh % heads;
            const uint16_t* kb = k + b * ks[0] + h * ks[1];
            const uint16_t* vb = v + b * vs[0] + h * vs[1];
            const uint16_t* qb = q + b * qs[0] + h * qs[1];
            // Rows of one head lie far apart, too far for the hardware to see them coming: ask for the next head's now.
            const int64_t next = h + 1 < heads ? 1 : 0;
            for (int64_t n = 0; n < keys; ++n) {
                _mm_prefetch(kb + next * ks[1] + n * ks[2], _MM_HINT_T0);
                _mm_prefetch(vb + next * vs[1] + n * vs[2], _MM_HINT_T0);
            }
            for (int64_t n = 0; n < key_blocks; ++n)
                for (int64_t d = 0; d < depth_tiles; ++d)
                    pack_keys(kb + n * 16 * ks[2] + d * kDepth * ks[3], ks[2], ks[3], std::max<int64_t>(0, keys - n * 16),
                              depth - d * kDepth, packed_k + (n * depth_tiles + d) * 256);
            for (int64_t n = 0; n < key_blocks / 2; ++n)
                for (int64_t d = 0; d < wide_tiles; ++d)
                    pack_values(vb + n * 32 * vs[2] + d * 16 * vs[3], vs[2], vs[3], std::max<int64_t>(0, keys - n * 32),
                                wide - d * 16, packed_v + (n * wide_tiles + d) * 256);
            for (int64_t row = 0; row < queries; row += kRows) {
                const int64_t rows = std::min<int64_t>(kRows, queries - row);
                const bool direct = qs[3] == 1 && rows == kRows && depth % kDepth == 0;
                const uint16_t* left = qb + row * qs[2];
                if (!direct)
                    for (int64_t d = 0; d < depth_tiles; ++d)
                        pack_rows(left + d * kDepth * qs[3], qs[2], qs[3], rows, depth - d * kDepth, rows_q + d * 512);
                for (int64_t n = 0; n < key_blocks; n += 2) {
                    _tile_zero(0);
                    _tile_zero(1);
                    for (int64_t d = 0; d < depth_tiles; ++d) {
                        if (direct)
                            _tile_loadd(2, left + d * kDepth, qs[2] * 2);
                        else
                            _tile_loadd(2, rows_q + d * 512, 64);
                        _tile_loadd(3, packed_k + (n * depth_tiles + d) * 256, 64);
                        _tile_loadd(4, packed_k + ((n + 1) * depth_tiles + d) * 256, 64);
                        _tile_dpbf16ps(0, 2, 3);
                        _tile_dpbf16ps(1, 2, 4);
                    }
                    _tile_stored(0, scores + n * 16, padded * 4);
                    _tile_stored(1, scores + n * 16 + 16, padded * 4);
                }
                Mask masks[kRows];
                for (int64_t r = 0; r < kRows; ++r) {
                    const int64_t at = row + std::min(r, rows - 1);  // rows past the end repeat the last one
                    const int64_t seen = mask_kind == 4 ? std::min(keys, at + 1) : keys;
                    masks[r] = {mask, mask_kind, ms[3], b * ms[0] + h * ms[1] + at * ms[2], seen};
                }
                alignas(64) float inverse[kRows];
                const auto softened = mask_kind == 0 || mask_kind == 4 ? soften<kNone>
                                      : mask_kind == 1 && ms[3] == 1   ? soften<kBytes>
                                                                       : soften<kAny>;
                _mm512_store_ps(inverse, softened(scores, weights, padded, masks, scale));
                for (int64_t d = 0; d < wide_tiles; ++d) {
                    _tile_zero(0);
                    for (int64_t n = 0; n < key_blocks / 2; ++n) {
                        _tile_loadd(2, weights + n * 32, padded * 2);
                        _tile_loadd(3, packed_v + (n * wide_tiles + d) * 256, 64);
                        _tile_dpbf16ps(0, 2, 3);
                    }
                    _tile_stored(0, result + d * 256, 64);
                }
                for (int64_t r = 0; r < rows; ++r) {
                    uint16_t* line = out + b * os[0] + h * os[1] + (row + r) * os[2];
                    for (int64_t d = 0; d < wide; d += 16) {
                        const __m512 x = _mm512_mul_ps(_mm512_load_ps(result + d / 16 * 256 + r * 16), _mm512_set1_ps(inverse[r]));
                        const __mmask16 live = wide - d >= 16 ? 0xffff : (1u << (wide - d)) - 1;
                        _mm256_mask_storeu_epi16(line + d, live, (__m256i)_mm512_cvtneps_pbh(x));
                    }
                }
            }
        }
        _tile_release();
        for (void* p : {(void*)packed_k, (void*)packed_v, (void*)rows_q, (void*)scores, (void*)weights, (void*)result}) std::free(p);
    }
}
}
