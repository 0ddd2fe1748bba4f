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

// exp(x) for x <= 0: 2^n times a polynomial of degree 6, relative error under 2e-7; exactly 0 below -87, so that
// masked lanes never become subnormal (which would make them many times slower).
inline __m512 exp_negative(__m512 x) {
    const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504089f));
    const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145751953125f), x);
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860682030941723212e-6f), f);
    __m512 p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    // The negation also catches nan, which must come through.
    const __mmask16 tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(_mm512_scalef_ps(p, n), tiny, _mm512_setzero_ps());
}

inline uint16_t at(const uint16_t* base, int64_t row, int64_t stride) { return base[row * stride]; }

// 16 keys x 32 values of depth -> the tile whose row r holds, for each key, values 2r and 2r+1.
void pack_keys(const uint16_t* k, int64_t stride_s, int64_t stride_d, int64_t keys, int64_t depth, uint32_t* tile) {
    for (int r = 0; r < 16; ++r)
        for (int n = 0; n < 16; ++n) {
            uint32_t low = 0, high = 0;
            if (n < keys && 2 * r < depth) low = k[n * stride_s + 2 * r * stride_d];
            if (n < keys && 2 * r + 1 < depth) high = k[n * stride_s + (2 * r + 1) * stride_d];
            tile[r * 16 + n] = low | high << 16;
        }
}

// 32 keys x 16 values of depth -> the tile whose row r holds, for each value, keys 2r and 2r+1.
void pack_values(const uint16_t* v, int64_t stride_s, int64_t stride_d, int64_t keys, int64_t depth, uint32_t* tile) {
    for (int r = 0; r < 16; ++r)
        for (int n = 0; n < 16; ++n) {
            uint32_t low = 0, high = 0;
            if (2 * r < keys && n < depth) low = v[2 * r * stride_s + n * stride_d];
            if (2 * r + 1 < keys && n < depth) high = v[(2 * r + 1) * stride_s + n * stride_d];
            tile[r * 16 + n] = low | high << 16;
        }
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
    const float bottom = -INFINITY;
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
                std::memset(rows_q, 0, depth_tiles * 1024);
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t d = 0; d < depth; ++d)
                        rows_q[d / kDepth * 512 + r * kDepth + d % kDepth] = qb[(row + r) * qs[2] + d * qs[3]];
                for (int64_t n = 0; n < key_blocks; n += 2) {
                    _tile_zero(0);
                    _tile_zero(1);
                    for (int64_t d = 0; d < depth_tiles; ++d) {
                        _tile_loadd(2, rows_q + d * 512, 64);
                        _tile_loadd(3, packed_k + (n * depth_tiles + d) * 256, 64);
                        _tile_loadd(4, packed_k + ((n + 1) * depth_tiles + d) * 256, 64);
                        _tile_dpbf16ps(0, 2, 3);
                        _tile_dpbf16ps(1, 2, 4);
                    }
                    _tile_stored(0, scores + n * 16, padded * 4);
                    _tile_stored(1, scores + n * 16 + 16, padded * 4);
                }
                float inverse[kRows];
                for (int64_t r = 0; r < rows; ++r) {
                    float* line = scores + r * padded;
                    const int64_t place = b * ms[0] + h * ms[1] + (row + r) * ms[2];
                    const int64_t seen = mask_kind == 4 ? std::min(keys, row + r + 1) : keys;
                    __m512 top = _mm512_set1_ps(bottom);
                    for (int64_t c = 0; c < padded; c += 16) {
                        __m512 x = _mm512_mul_ps(_mm512_load_ps(line + c), _mm512_set1_ps(scale));
                        __mmask16 live = c + 16 <= seen ? 0xffff : c >= seen ? 0 : (1u << (seen - c)) - 1;
                        if (mask_kind == 1 && ms[3] == 1) {
                            const auto* m = static_cast<const uint8_t*>(mask) + place + c;
                            live &= _mm_mask_test_epi8_mask(live, _mm_maskz_loadu_epi8(live, m), _mm_set1_epi8(-1));
                        } else if (mask_kind >= 1 && mask_kind <= 3) {
                            alignas(64) float more[16] = {};
                            for (int64_t i = 0; i < 16 && c + i < seen; ++i) {
                                const int64_t where = place + (c + i) * ms[3];
                                if (mask_kind == 1) more[i] = static_cast<const uint8_t*>(mask)[where] ? 0.0f : bottom;
                                if (mask_kind == 3) more[i] = static_cast<const float*>(mask)[where];
                                if (mask_kind == 2) {
                                    const uint32_t bits = uint32_t(static_cast<const uint16_t*>(mask)[where]) << 16;
                                    std::memcpy(more + i, &bits, 4);
                                }
                            }
                            x = _mm512_add_ps(x, _mm512_load_ps(more));
                        }
                        x = _mm512_mask_mov_ps(_mm512_set1_ps(bottom), live, x);
                        _mm512_store_ps(line + c, x);
                        top = _mm512_max_ps(x, top);
                    }
                    const float most = _mm512_reduce_max_ps(top);
                    __m512 sum = _mm512_setzero_ps();
                    const __m512 shift = _mm512_set1_ps(most == bottom ? 0.0f : most);
                    for (int64_t c = 0; c < padded; c += 16) {
                        const __m512 e = exp_negative(_mm512_sub_ps(_mm512_load_ps(line + c), shift));
                        sum = _mm512_add_ps(sum, e);
                        _mm256_store_si256(reinterpret_cast<__m256i*>(weights + r * padded + c), (__m256i)_mm512_cvtneps_pbh(e));
                    }
                    inverse[r] = 1.0f / _mm512_reduce_add_ps(sum);
                }
                if (rows < kRows) std::memset(weights + rows * padded, 0, (kRows - rows) * padded * 2);
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
