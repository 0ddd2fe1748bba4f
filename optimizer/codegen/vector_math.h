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

//: quiet_bf16 needs bits
// For values no NaN of which has anything in its low half, so that rounding cannot carry it away: all that comes of
// bf16 inputs, or of none.
static inline uint16_t quiet_to_bf16(float f) {
    const uint32_t u = as_bits(f);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
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

//: exp_below needs bits
// exp for arguments known to be at most 0, as in a softmax: 1 ulp. Subnormal results are right, with one step only
// where they are due: lanes below -87 are scaled up by 2^64 and back.
static inline float exp_below(float x) {
    const float t = fmaf(x, 1.44269504f, 12582912.0f);
    const float f = fmaf(t - 12582912.0f, -1.42860677e-6f, fmaf(t - 12582912.0f, -6.93145752e-1f, x));
    float p = 1.37805939e-3f;
    p = fmaf(p, f, 8.37312452e-3f);
    p = fmaf(p, f, 4.16695364e-2f);
    p = fmaf(p, f, 1.66664720e-1f);
    p = fmaf(p, f, 4.99999851e-1f);
    p = fmaf(p, f, 1.0f);
    p = fmaf(p, f, 1.0f);
    const bool deep = x < -87.0f;
    float y = p * as_float((as_bits(t) << 23) + (deep ? 0x5f800000u : 0x3f800000u));
    y = deep ? y * 5.42101086e-20f : y;
    return x < -104.0f ? 0.0f : y;
}
static inline double exp_below(double x) { return exp(x); }

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
// 2.5 ulp; 0 where the result would be subnormal.
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

//: one_plus_erf needs exp_below
// 1 + erf(x) as 2 - erfc or erfc of |x|: one polynomial for -log(erfc), none near 0. Absolute error 1.8e-7, and
// unlike a sum with 1 it does not cancel for negative x.
static inline float one_plus_erf(float x) {
    const float t = fabsf(x);
    float p = 8.91598333e-08f;
    p = fmaf(p, t, -3.14362342e-06f);
    p = fmaf(p, t, 4.35373477e-05f);
    p = fmaf(p, t, -0.000294300175f);
    p = fmaf(p, t, 0.000879962288f);
    p = fmaf(p, t, 0.000850311888f);
    p = fmaf(p, t, -0.0198738538f);
    p = fmaf(p, t, 0.103048727f);
    p = fmaf(p, t, 0.63657254f);
    p = fmaf(p, t, 1.12838185f);
    const float e = exp_below(-p * t);
    return x < 0.0f ? e : 2.0f - e;
}

//: one_plus_erf_half needs bits
// Relative error 7e-5 (2% where 1 + erf is below 1e-8), for results that are rounded to half precision.
static inline float one_plus_erf_half(float x) {
    const float t = fabsf(x);
    float p = 5.13002902e-6f;
    p = fmaf(p, t, -1.78742221e-4f);
    p = fmaf(p, t, 2.56346813e-3f);
    p = fmaf(p, t, -2.01729562e-2f);
    p = fmaf(p, t, 1.00517613e-1f);
    p = fmaf(p, t, 6.39246985e-1f);
    p = fmaf(p, t, 1.12766281f);
    const float y = -p * t;
    const float n = fmaf(y, 1.44269504f, 12582912.0f);
    const float f = fmaf(n - 12582912.0f, -0.693147181f, y);
    float q = fmaf(4.12776296e-2f, f, 1.67535366e-1f);
    q = fmaf(q, f, 5.00051187e-1f);
    q = fmaf(q, f, 1.0f);
    q = fmaf(q, f, 1.0f);
    float e = q * as_float((as_bits(n) << 23) + 0x3f800000u);
    e = t > 9.0f ? 0.0f : e;
    return x < 0.0f ? e : 2.0f - e;
}

//: floor
// Python's rounding: towards minus infinity, the remainder takes the sign of the divisor.
static inline float floor_divide(float a, float b) { return floorf(a / b); }
static inline double floor_divide(double a, double b) { return floor(a / b); }
static inline float floor_remainder(float a, float b) { const float r = fmodf(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
static inline double floor_remainder(double a, double b) { const double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
template <class T> static inline T floor_divide(T a, T b) { const T q = a / b; return (a % b != 0) && ((a < 0) != (b < 0)) ? q - 1 : q; }
template <class T> static inline T floor_remainder(T a, T b) { const T r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
