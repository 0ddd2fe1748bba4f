// The tile registers by plain loops, for a CPU without them.
#include <cstdint>
#include <cstring>
#include <immintrin.h>
namespace {
thread_local float sim_tiles[8][256];
inline void sim_zero(int t) { std::memset(sim_tiles[t], 0, 1024); }
inline void sim_load(int t, const void* from, int64_t step) {
    for (int r = 0; r < 16; ++r) std::memcpy(sim_tiles[t] + 16 * r, static_cast<const char*>(from) + r * step, 64);
}
inline void sim_store(int t, void* to, int64_t step) {
    for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * step, sim_tiles[t] + 16 * r, 64);
}
inline void sim_dot(int to, int left, int right) {
    uint16_t a[512], b[512];
    std::memcpy(a, sim_tiles[left], 1024);
    std::memcpy(b, sim_tiles[right], 1024);
    auto wide = [](uint16_t x) { uint32_t u = uint32_t(x) << 16; float f; std::memcpy(&f, &u, 4); return f; };
    for (int r = 0; r < 16; ++r)
        for (int u = 0; u < 16; ++u)
            for (int c = 0; c < 16; ++c)
                for (int j = 0; j < 2; ++j) sim_tiles[to][r * 16 + c] += wide(a[r * 32 + 2 * u + j]) * wide(b[u * 32 + 2 * c + j]);
}
}
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_zero(t) sim_zero(t)
#define _tile_loadd(t, from, step) sim_load(t, from, step)
#define _tile_stored(t, to, step) sim_store(t, to, step)
#define _tile_dpbf16ps(to, left, right) sim_dot(to, left, right)
#define _tile_loadconfig(p) (void)(p)
#define _tile_release()
