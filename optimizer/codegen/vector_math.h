// Branch-free float functions a compiler can vectorise. Each section is pasted only where it is used:
// a section starts with "//: name needs others". NaN goes in and out; infinities give the exact limits.
// Errors are the worst seen over a dense sweep of the function's range against float64, in units of the last place.

//: bits
static inline float as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t as_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

//: bf16 needs bits
static inline float from_bf16(uint16_t h) { return as_float((uint32_t)h << 16); }
// Round to nearest even; a NaN keeps its sign and stays a NaN when its low bits are cut.
static inline uint16_t to_bf16(float f) {
    const uint32_t u = as_bits(f);
    const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return (uint16_t)((f != f ? (u | 0x400000u) : rounded) >> 16);
}

//: max
// Propagates NaN, as torch does; a plain comparison would lose it.
template <class T> static inline T larger(T a, T b) { return (b <= a || a != a) ? a : b; }

//: min
template <class T> static inline T smaller(T a, T b) { return (b >= a || a != a) ? a : b; }

//: exp needs bits
// 1 ulp. exp(-inf) is exactly 0. Subnormal results come out right, and only where they are due: scaling by 2^n in
// two steps keeps masked lanes from turning into subnormals, which would slow every later use of them.
static inline float fast_exp(float x) {
    const float t = fmaf(x, 1.44269504f, 12582912.0f);
    const float n = t - 12582912.0f;
    const int32_t i = (int32_t)as_bits(t) - 0x4b400000;
    const float f = fmaf(n, -1.42860677e-6f, fmaf(n, -6.93145752e-1f, x));
    float p = 1.37805939e-3f;
    p = fmaf(p, f, 8.37312452e-3f);
    p = fmaf(p, f, 4.16695364e-2f);
    p = fmaf(p, f, 1.66664720e-1f);
    p = fmaf(p, f, 4.99999851e-1f);
    p = fmaf(p, f, 1.0f);
    p = fmaf(p, f, 1.0f);
    const int32_t half = i >> 1;
    const float low = as_float((uint32_t)(half + 127) << 23), high = as_float((uint32_t)(i - half + 127) << 23);
    float y = p * low * high;
    y = x < -104.0f ? 0.0f : y;
    return x > 88.7228394f ? INFINITY : y;
}
static inline double fast_exp(double x) { return exp(x); }

//: log needs bits
// 1 ulp.
static inline float fast_log(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const float scaled = tiny ? x * 8388608.0f : x;
    const int32_t u = (int32_t)as_bits(scaled);
    const int32_t e = (u - 0x3f2aaaab) & (int32_t)0xff800000;
    const float m = as_float((uint32_t)(u - e)) - 1.0f;
    const float i = fmaf((float)e, 1.19209290e-7f, tiny ? -23.0f : 0.0f);
    const float s = m * m;
    float r = -0.130310059f, t = 0.140869141f;
    r = fmaf(r, s, -0.121483512f);
    t = fmaf(t, s, 0.139814854f);
    r = fmaf(r, s, -0.166846126f);
    t = fmaf(t, s, 0.200120345f);
    r = fmaf(r, s, -0.249996200f);
    r = fmaf(t, m, r);
    r = fmaf(r, m, 0.333331972f);
    r = fmaf(r, m, -0.5f);
    r = fmaf(r, s, m);
    r = fmaf(i, 0.693147182f, r);
    r = x <= 3.40282347e+38f ? r : x + x;
    r = x < 0.0f ? NAN : r;
    return x == 0.0f ? -INFINITY : r;
}
static inline double fast_log(double x) { return log(x); }

//: sigmoid needs exp
// 2 ulp.
static inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }
static inline double fast_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

//: tanh needs exp
// 2 ulp. Small arguments by a polynomial: the exponential form cancels there.
static inline float fast_tanh(float x) {
    const float s = x * x;
    float p = 1.57394409e-2f;
    p = fmaf(p, s, -5.23025580e-2f);
    p = fmaf(p, s, 1.33152470e-1f);
    p = fmaf(p, s, -3.33327681e-1f);
    const float near = fmaf(p * s, x, x);
    const float size = fabsf(x);
    const float far = copysignf(1.0f - 2.0f / (1.0f + fast_exp(2.0f * size)), x);
    return size < 0.55f ? near : far;
}
static inline double fast_tanh(double x) { return tanh(x); }

//: erf needs exp
// 1 ulp. Two minimax polynomials after N. Juffa: near 0 in x, else the logarithm of 1 - erf in |x|.
static inline float fast_erf(float x) {
    const float s = x * x, t = fabsf(x);
    float r = fmaf(-1.72853470e-5f, t, 3.83197126e-4f);
    const float u = fmaf(-3.88396438e-3f, t, 2.42546219e-2f);
    r = fmaf(r, s, u);
    r = fmaf(r, t, -1.06777877e-1f);
    r = fmaf(r, t, -6.34846687e-1f);
    r = fmaf(r, t, -1.28717512e-1f);
    r = fmaf(r, t, -t);
    const float far = copysignf(1.0f - fast_exp(t > 4.0f ? -20.0f : r), x);
    float q = -5.96761703e-4f;
    q = fmaf(q, s, 4.99119423e-3f);
    q = fmaf(q, s, -2.67681349e-2f);
    q = fmaf(q, s, 1.12819925e-1f);
    q = fmaf(q, s, -3.76125336e-1f);
    q = fmaf(q, s, 1.28379166e-1f);
    const float near = fmaf(q, x, x);
    return t > 0.927734375f ? far : (x == x ? near : x);
}
static inline double fast_erf(double x) { return erf(x); }

//: one_plus_erf needs erf
static inline float one_plus_erf(float x) { return 1.0f + fast_erf(x); }

//: floor
// Python's rounding: towards minus infinity, the remainder takes the sign of the divisor.
static inline float floor_divide(float a, float b) { return floorf(a / b); }
static inline double floor_divide(double a, double b) { return floor(a / b); }
static inline float floor_remainder(float a, float b) { const float r = fmodf(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
static inline double floor_remainder(double a, double b) { const double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
template <class T> static inline T floor_divide(T a, T b) { const T q = a / b; return (a % b != 0) && ((a < 0) != (b < 0)) ? q - 1 : q; }
template <class T> static inline T floor_remainder(T a, T b) { const T r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
