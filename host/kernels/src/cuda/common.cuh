// Types, conversions and reductions shared by all kernels. Put before each source at compile time; needs no headers.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u16 bf16;

#define INF __int_as_float(0x7f800000)
#define NAN_ __int_as_float(0x7fffffff)

__device__ __forceinline__ float to_f32(bf16 x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ float low_f32(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high_f32(u32 x) { return __uint_as_float(x & 0xffff0000u); }

// Two floats as a pair of bf16, `low` in the lower half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
__device__ __forceinline__ bf16 to_bf16(float x) { return (bf16)(pack_bf16(x, 0.0f) & 0xffffu); }

// `real` is what activations are stored as: bf16, or f32 where REAL_F32 is defined. Arithmetic is f32 either way. `Eight`
// holds eight of them as they lie in memory.
#ifdef REAL_F32
typedef float real;
struct Eight { float4 a, b; };
__device__ __forceinline__ Eight get8(const real* p) { return {((const float4*)p)[0], ((const float4*)p)[1]}; }
__device__ __forceinline__ void put8(real* p, const Eight& v) { ((float4*)p)[0] = v.a; ((float4*)p)[1] = v.b; }
__device__ __forceinline__ void unpack8(const Eight& v, float* x) {
    x[0] = v.a.x; x[1] = v.a.y; x[2] = v.a.z; x[3] = v.a.w;
    x[4] = v.b.x; x[5] = v.b.y; x[6] = v.b.z; x[7] = v.b.w;
}
__device__ __forceinline__ Eight pack8(const float* x) {
    return {make_float4(x[0], x[1], x[2], x[3]), make_float4(x[4], x[5], x[6], x[7])};
}
__device__ __forceinline__ float2 load2(const real* p) { return *(const float2*)p; }
__device__ __forceinline__ void store4(real* p, const float* x) { *(float4*)p = make_float4(x[0], x[1], x[2], x[3]); }
__device__ __forceinline__ real to_real(float x) { return x; }
__device__ __forceinline__ float of_real(real x) { return x; }
__device__ __forceinline__ float exp_real(float x) { return expf(x); }
#else
typedef bf16 real;
typedef uint4 Eight;
__device__ __forceinline__ Eight get8(const real* p) { return *(const uint4*)p; }
__device__ __forceinline__ void put8(real* p, const Eight& v) { *(uint4*)p = v; }
__device__ __forceinline__ void unpack8(const Eight& v, float* x) {
    x[0] = low_f32(v.x); x[1] = high_f32(v.x);
    x[2] = low_f32(v.y); x[3] = high_f32(v.y);
    x[4] = low_f32(v.z); x[5] = high_f32(v.z);
    x[6] = low_f32(v.w); x[7] = high_f32(v.w);
}
__device__ __forceinline__ Eight pack8(const float* x) {
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}
__device__ __forceinline__ float2 load2(const real* p) {
    u32 v = *(const u32*)p;
    return make_float2(low_f32(v), high_f32(v));
}
__device__ __forceinline__ void store4(real* p, const float* x) {
    *(uint2*)p = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
}
__device__ __forceinline__ real to_real(float x) { return to_bf16(x); }
__device__ __forceinline__ float of_real(real x) { return to_f32(x); }
// Rounding hides what this is off by.
__device__ __forceinline__ float exp_real(float x) { return __expf(x); }
#endif
__device__ __forceinline__ void load8(const real* p, float* x) { unpack8(get8(p), x); }
__device__ __forceinline__ void store8(real* p, const float* x) { put8(p, pack8(x)); }

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp_real(-x)); }

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

// Sum over a block of whole warps, in a fixed order, known to every thread. `scratch` holds 33 floats.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    int warps = blockDim.x >> 5;
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    if (threadIdx.x < 32) {
        float y = warp_sum(threadIdx.x < warps ? scratch[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) scratch[32] = y;
    }
    __syncthreads();
    float total = scratch[32];
    __syncthreads();
    return total;
}
