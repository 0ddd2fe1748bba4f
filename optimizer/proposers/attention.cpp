// Attention on a CPU: softmax(scale * Q K^T + mask) V, sums in fp32. Keys and values of a head are packed once a thread;
// then a few query rows go through scores, softmax and the second product while they are in the nearest caches, a block
// of keys at a time where there are many (the maximum and the sum of a row are carried on, Milakov and Gimelshein 2018).
#include <omp.h>

#include <algorithm>
#include <cstdlib>

namespace {

enum { kNothing, kBool, kAddsBFloat16, kAddsFloat32, kAddsFloat16, kCausal };

// One call. Strides in elements, of (batch, head, row, column); columns of out are dense. group: query heads of a key head.
struct Call {
    int64_t batch, heads, group, queries, keys, depth, wide, mask_kind;
    int64_t q[4], k[4], v[4], mask[4], out[4];
};

// Multiplications that are worth a thread.
constexpr int64_t kGrain = 1 << 18;

struct Pointers {
    const Element *q, *k, *v;
    const void* mask;
    Element* out;
};

inline int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// One block a thread, grown when a larger call comes, given back when the thread ends.
struct Scratch {
    void* memory = nullptr;
    size_t size = 0;
    ~Scratch() { std::free(memory); }
    char* get(size_t wanted) {
        if (wanted > size) {
            std::free(memory);
            memory = std::aligned_alloc(64, wanted);
            size = wanted;
        }
        return static_cast<char*>(memory);
    }
};
thread_local Scratch scratch;

// Sizes of a call as they are packed, and where each thing lies in a thread's block.
struct Plan {
    int64_t rows, units, key_panels, wide_panels, block, key_panel, value_panel;  // panels: in Held, one to the next
    int64_t step;                                                                 // of a row of scores and of weights
    size_t keys, values, left, scores, weights, result, numbers, size;

    explicit Plan(const Call& c) {
        rows = std::min<int64_t>(QUERY_ROWS, up(c.queries, Product::kRowStep));
        units = up(up(c.depth, kUnit) / kUnit, Product::kUnitStep);
        key_panels = up(up(c.keys, kLanes) / kLanes, Product::kPanelStep);
        wide_panels = up(c.wide, kLanes) / kLanes;
        block = std::min<int64_t>(KEY_BLOCK, key_panels * kLanes);
        step = block + kLanes;  // rows a power of two apart would meet in the same lines of the cache
        key_panel = units * kRow;
        value_panel = key_panels * kLanes / kUnit * kRow;
        size = 0;
        keys = room(key_panels * key_panel * sizeof(Held));
        values = room(wide_panels * value_panel * sizeof(Held));
        left = room(rows * units * kUnit * sizeof(Held));
        scores = room(rows * step * sizeof(float));
        weights = room(rows * step * sizeof(Held));
        result = room(rows * wide_panels * kLanes * sizeof(float));
        numbers = room(c.mask_kind == kNothing || c.mask_kind == kCausal ? 0 : (c.mask[2] ? rows : 1) * step * sizeof(float));
    }
    size_t room(size_t bytes) {
        const size_t at = size;
        size += up(bytes, 64);
        return at;
    }
};

// Row `row` of a mask of numbers, keys `first` to `first + count`, as fp32 in natural units.
void read_mask(const Call& c, const void* mask, int64_t place, int64_t first, int64_t count, float* numbers) {
    const int64_t step = c.mask[3];
    auto each = [&](auto* base, auto convert) {
        base += place + first * step;
        if (step == 1)
            for (int64_t i = 0; i < count; ++i) numbers[i] = convert(base[i]);
        else
            for (int64_t i = 0; i < count; ++i) numbers[i] = convert(base[i * step]);
    };
    if (c.mask_kind == kAddsFloat32) each(static_cast<const float*>(mask), [](float x) { return x; });
    if (c.mask_kind == kAddsBFloat16) each(static_cast<const uint16_t*>(mask), from_bf16);
    if (c.mask_kind == kAddsFloat16) each(static_cast<const uint16_t*>(mask), from_fp16);
    if (c.mask_kind == kBool) each(static_cast<const uint8_t*>(mask), [](uint8_t x) { return x ? 0.0f : -INFINITY; });
}

// How a mask is met: not at all (only the ends of rows), a byte for each key side by side, or numbers to add.
enum Look { kEnds, kBytes, kNumbers };

// What may be seen of one query row, and what was: the greatest score, and the sum of exponentials less it.
// mask: bytes, or numbers of fp32, for keys of this block. seen: how many of them may be looked at.
// kept: what earlier results of the row are to be multiplied with.
struct Row {
    const void* mask = nullptr;
    int64_t seen = 0;
    float top = -INFINITY, sum = 0.0f, less = 0.0f, kept = 0.0f;
};

constexpr float kLog2e = 1.44269504f;

// Scores of one row as they will be looked at: score * to() less its maximum, times by(), is a power of 2. The maximum is
// taken away before any factor that rounds, so that it weighs exactly one: weights are rounded to bf16, and their sum is
// not. Nor may a factor above one meet a mask that holds the least fp32.
template <Look how>
struct Scores {
    float* const line;
    const Row& row;
    const float scale;

    float to() const { return how == kNumbers ? scale : std::copysign(1.0f, scale); }
    float by() const { return how == kNumbers ? kLog2e : std::fabs(scale) * kLog2e; }
    Lanes visible(int64_t c, Lanes inside) const {
        if constexpr (how == kBytes) return nonzero(static_cast<const int8_t*>(row.mask) + c, inside);
        else return inside;
    }
    // Call each(first key, lanes) for the keys that may be looked at, a vector at a time.
    template <typename Each>
    void over(Each each) const {
        const int64_t whole = row.seen / kLanes * kLanes;
        for (int64_t c = 0; c < whole; c += kLanes) each(c, first_lanes(kLanes));
        if (whole < row.seen) each(whole, first_lanes(row.seen - whole));
    }
};

// Find the greatest score of a row; numbers of a mask are added on the way.
template <Look how>
inline void raise_top(const Scores<how> scores, Row& row) {
    const Floats to = splat(scores.to()), least = splat(-INFINITY);
    Floats most = least;
    scores.over([&](int64_t c, Lanes inside) {
        Floats x = load<Floats>(scores.line + c) * to;
        if constexpr (how == kNumbers) store(scores.line + c, x += load<Floats>(static_cast<const float*>(row.mask) + c));
        most = larger(most, pick(scores.visible(c, inside), x, least));
    });
    const float top = std::max(row.top, across(most, larger));
    // A row with nothing to see yet is less zero: none of its exponentials counts.
    row.less = top == -INFINITY ? 0.0f : top;
    row.kept = row.top == -INFINITY ? 0.0f : exp2_below(splat((row.top - row.less) * scores.by()))[0];
    row.top = top;
}

// Scores of one row -> unnormalised weights, zero from the last key seen up to `padded`.
template <Look how>
inline void weigh(const Scores<how> scores, Held* weights, int64_t padded, Row& row) {
    const Floats to = splat(scores.to()), by = splat(scores.by()), less = splat(row.less);
    Floats total = Floats{};
    scores.over([&](int64_t c, Lanes inside) {
        const Floats x = load<Floats>(scores.line + c);
        const Floats t = (how == kNumbers ? x - less : x * to - less) * by;
        const Floats e = pick(scores.visible(c, inside), exp2_below(t), Floats{});
        total += e;
        store_weights(weights + c, e);
    });
    for (int64_t c = up(row.seen, kLanes); c < padded; c += kLanes) store_weights(weights + c, Floats{});
    row.sum = row.sum * row.kept + across(total, sum);
}

// Scores of some rows -> unnormalised weights. All rows go through one pass before the next: one row alone would wait for
// its own maximum.
template <Look how>
void soften(float* scores, Held* weights, int64_t step, int64_t padded, float scale, Row* rows, int64_t count) {
    for (int64_t r = 0; r < count; ++r) raise_top(Scores<how>{scores + r * step, rows[r], scale}, rows[r]);
    for (int64_t r = 0; r < count; ++r) weigh(Scores<how>{scores + r * step, rows[r], scale}, weights + r * step, padded, rows[r]);
}

// A thread's share of a call: what it has packed, and the rows it works on.
class Worker {
  public:
    Worker(const Call& call, const Pointers& at, const Plan& plan, float scale)
        : c(call), at(at), plan(plan), scale(scale), memory(scratch.get(plan.size)) {}

    // Query rows `row` on, at most plan.rows of them, of head `bh`.
    void attend(int64_t bh, int64_t row) {
        b = bh / c.heads, h = bh % c.heads;
        if (bh / c.group != packed) pack(bh);
        count = std::min(plan.rows, c.queries - row);
        const int64_t rows = up(count, Product::kRowStep);
        const int64_t seen = c.mask_kind == kCausal ? std::min(c.keys, row + count) : c.keys;
        int64_t left_step;
        const Held* left = query_rows(row, rows, left_step);
        float* result = reinterpret_cast<float*>(memory + plan.result);
        float* scores = reinterpret_cast<float*>(memory + plan.scores);
        Held* weights = reinterpret_cast<Held*>(memory + plan.weights);
        const int64_t width = plan.wide_panels * kLanes;
        for (int64_t r = 0; r < rows; ++r) seen_rows[r] = Row();
        if (seen == 0) std::fill(result, result + rows * width, 0.0f);
        for (int64_t first = 0; first < seen; first += plan.block) {
            const int64_t panels = up(up(std::min(plan.block, seen - first), kLanes) / kLanes, Product::kPanelStep);
            Product::multiply(left, left_step, rows, keys() + first / kLanes * plan.key_panel, plan.key_panel, panels,
                              plan.units, scores, plan.step, false);
            soften_rows(row, rows, first, panels * kLanes, scores, weights);
            for (int64_t r = 0; r < rows && first > 0; ++r)
                if (seen_rows[r].kept != 1.0f)
                    for (int64_t i = 0; i < width; ++i) result[r * width + i] *= seen_rows[r].kept;
            Product::multiply(weights, plan.step, rows, values() + first / kUnit * kRow, plan.value_panel,
                              plan.wide_panels, panels * kLanes / kUnit, result, width, first > 0);
        }
        write(row, result, width);
    }

  private:
    const Call& c;
    const Pointers& at;
    const Plan& plan;
    const float scale;
    char* const memory;
    int64_t packed = -1, b = 0, h = 0, count = 0;
    Row seen_rows[QUERY_ROWS];

    Held* keys() { return reinterpret_cast<Held*>(memory + plan.keys); }
    Held* values() { return reinterpret_cast<Held*>(memory + plan.values); }

    void pack(int64_t bh) {
        packed = bh / c.group;
        const Element* k = at.k + b * c.k[0] + h / c.group * c.k[1];
        const Element* v = at.v + b * c.v[0] + h / c.group * c.v[1];
        // Rows of one head lie far apart, too far for the hardware to see them coming: ask for the next head's now.
        for (int64_t n = 0; n < c.keys && packed % (c.heads / c.group) + 1 < c.heads / c.group; ++n) {
            __builtin_prefetch(k + c.k[1] + n * c.k[2]);
            __builtin_prefetch(v + c.v[1] + n * c.v[2]);
        }
        for (int64_t n = 0; n < plan.key_panels; ++n)
            pack_keys(k + n * kLanes * c.k[2], c.k[2], c.k[3], c.keys - n * kLanes, c.depth, plan.units, keys() + n * plan.key_panel);
        for (int64_t d = 0; d < plan.wide_panels; ++d)
            pack_values(v + d * kLanes * c.v[3], c.v[2], c.v[3], c.keys, c.wide - d * kLanes,
                        plan.key_panels * kLanes / kUnit, values() + d * plan.value_panel);
    }

    // Rows of Q as a left factor: where they lie if they may be read as they are.
    const Held* query_rows(int64_t row, int64_t rows, int64_t& step) {
        const Element* q = at.q + b * c.q[0] + h * c.q[1] + row * c.q[2];
        if constexpr (kSame) {
            if (c.q[3] == 1 && rows == count && c.depth == plan.units * kUnit) {
                step = c.q[2];
                return static_cast<const Held*>(static_cast<const void*>(q));
            }
        }
        Held* left = reinterpret_cast<Held*>(memory + plan.left);
        step = plan.units * kUnit;
        pack_left(q, c.q[2], c.q[3], count, c.depth, rows, step, left);
        return left;
    }

    void soften_rows(int64_t row, int64_t rows, int64_t first, int64_t padded, float* scores, Held* weights) {
        const Look how = c.mask_kind == kNothing || c.mask_kind == kCausal ? kEnds
                         : c.mask_kind == kBool && c.mask[3] == 1         ? kBytes
                                                                          : kNumbers;
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t at_row = row + std::min(r, count - 1);  // rows past the end repeat the last one
            const int64_t ends = (c.mask_kind == kCausal ? std::min(c.keys, at_row + 1) : c.keys) - first;
            seen_rows[r].seen = std::clamp<int64_t>(ends, 0, padded);
            if (how != kEnds) seen_rows[r].mask = mask_row(at_row, r, first, seen_rows[r].seen, how);
        }
        const auto softened = how == kEnds ? soften<kEnds> : how == kBytes ? soften<kBytes> : soften<kNumbers>;
        softened(scores, weights, plan.step, padded, scale, seen_rows, rows);
    }

    const void* mask_row(int64_t row, int64_t r, int64_t first, int64_t seen, Look how) {
        const int64_t place = b * c.mask[0] + h * c.mask[1] + row * c.mask[2];
        if (how == kBytes) return static_cast<const int8_t*>(at.mask) + place + first;
        float* numbers = reinterpret_cast<float*>(memory + plan.numbers);
        if (c.mask[2] != 0) numbers += r * plan.step;
        if (c.mask[2] != 0 || r == 0) read_mask(c, at.mask, place, first, seen, numbers);
        return numbers;
    }

    void write(int64_t row, const float* result, int64_t width) {
        for (int64_t r = 0; r < count; ++r) {
            Element* line = at.out + b * c.out[0] + h * c.out[1] + (row + r) * c.out[2];
            const float by = seen_rows[r].sum == 0.0f ? 0.0f : 1.0f / seen_rows[r].sum;
            for (int64_t i = 0; i < c.wide; ++i) line[i] = narrowed(result[r * width + i] * by);
        }
    }
};

}  // namespace

// mask_kind: see above. Rows are dealt out in order, so that a thread packs few heads.
extern "C" void attention(const Element* q, const Element* k, const Element* v, const void* mask, Element* out,
                          const Call* call, float scale) {
    const Call& c = *call;
    const Plan plan(c);
    const Pointers at = {q, k, v, mask, out};
    const int64_t blocks = c.queries ? up(c.queries, plan.rows) / plan.rows : 0, tasks = c.batch * c.heads * blocks;
    const int64_t worth = c.batch * c.heads * c.queries * c.keys * (c.depth + c.wide) / kGrain;
    const int64_t threads = std::max<int64_t>(1, std::min<int64_t>({omp_get_max_threads(), tasks, worth}));
#pragma omp parallel num_threads((int)threads)
    {
        Worker worker(c, at, plan, scale);
        Product::begin();
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tasks; ++t) worker.attend(t / blocks, t % blocks * plan.rows);
        Product::end();
    }
}
