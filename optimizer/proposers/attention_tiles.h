// The tile registers of a CPU with AMX for the same product: 16 rows times two panels of bf16 pairs at a time.
#include <sys/syscall.h>
#include <unistd.h>

namespace {

struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// out [rows][panels * 16] = left [rows][units] * right, or added to it. rows and units: by sixteens.
struct Tiles {
    static constexpr int64_t kRowStep = 16, kUnitStep = 16, kPanelStep = 2;
    static void begin() {
        TileShapes shapes;
        for (int i = 0; i < 8; ++i) {
            shapes.bytes[i] = 64;
            shapes.rows[i] = 16;
        }
        _tile_loadconfig(&shapes);
    }
    static void end() { _tile_release(); }
    static void multiply(const Held* left, int64_t left_step, int64_t rows, const Held* right, int64_t panel_step,
                         int64_t panels, int64_t units, float* out, int64_t out_step, bool more) {
        for (int64_t r = 0; r < rows; r += 16)
            for (int64_t p = 0; p < panels; p += 2) {
                const bool both = p + 1 < panels;
                const Held* columns = right + p * panel_step;
                float* to = out + r * out_step + p * 16;
                if (more) {
                    _tile_loadd(0, to, out_step * 4);
                    if (both) _tile_loadd(1, to + 16, out_step * 4);
                } else {
                    _tile_zero(0);
                    _tile_zero(1);
                }
                for (int64_t u = 0; u < units; u += 16) {
                    _tile_loadd(2, left + r * left_step + u * 2, left_step * 2);
                    _tile_loadd(3, columns + u * kRow, 64);
                    _tile_dpbf16ps(0, 2, 3);
                    if (!both) continue;
                    _tile_loadd(4, columns + panel_step + u * kRow, 64);
                    _tile_dpbf16ps(1, 2, 4);
                }
                _tile_stored(0, to, out_step * 4);
                if (both) _tile_stored(1, to + 16, out_step * 4);
            }
    }
};

}  // namespace

// Ask the kernel for the tile registers; 0 when they may be used.
extern "C" int64_t attention_ready() { return syscall(SYS_arch_prctl, 0x1023, 18); }
