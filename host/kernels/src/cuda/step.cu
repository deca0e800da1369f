// The language-model head's softmax over a chunk of logits, and the optimiser step. f32 logits, masters and moments.

// Per row: ln p(label), −Σ p ln p and ln Σ exp(z), z = logit · inv_temp. One block of 512 threads per row.
extern "C" __global__ void __launch_bounds__(512)
head_stats(const float* __restrict__ logits, const int* __restrict__ labels, const float* __restrict__ inv_temp,
           float* __restrict__ logprob, float* __restrict__ entropy, float* __restrict__ logz, int vocab) {
    __shared__ float scratch[33];
    const float* row = logits + (long long)blockIdx.x * vocab;
    float scale = inv_temp[blockIdx.x], top = -INF, sum = 0.0f, weighted = 0.0f;
    for (int i = threadIdx.x; i < vocab; i += 512 * 4) {
        float z[4], high = top;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            z[j] = i + j * 512 < vocab ? row[i + j * 512] * scale : -INF;
            high = fmaxf(high, z[j]);
        }
        if (high == -INF) { sum += z[0] + z[1] + z[2] + z[3] == -INF ? 0.0f : NAN_; continue; }
        float shift = top - high, keep = top == -INF ? 0.0f : __expf(shift);
        weighted = top == -INF ? 0.0f : keep * fmaf(sum, shift, weighted);
        sum *= keep;
        top = high;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float d = z[j] - top, e = __expf(d);
            sum += e;
            weighted = fmaf(e, d == -INF ? 0.0f : d, weighted);
        }
    }
    // Move every thread to the row's maximum, then add.
    float high = warp_max(top);
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = high;
    __syncthreads();
    high = scratch[0];
#pragma unroll
    for (int i = 1; i < 16; i++) high = fmaxf(high, scratch[i]);
    __syncthreads();
    float shift = top - high, keep = top == -INF ? 0.0f : __expf(shift);
    weighted = top == -INF ? 0.0f : keep * fmaf(sum, shift, weighted);
    sum *= top == -INF ? 1.0f : keep;
    sum = block_sum(sum, scratch);
    weighted = block_sum(weighted, scratch);
    if (threadIdx.x == 0) {
        float z = high + logf(sum);
        logz[blockIdx.x] = z;
        int label = labels[blockIdx.x];
        logprob[blockIdx.x] = (u32)label < (u32)vocab ? row[label] * scale - z : NAN_;
        entropy[blockIdx.x] = logf(sum) - weighted / sum;
    }
}

// inv_temp · (dlogprob · (1[label] − p) − dentropy · p · (ln p + entropy)), four columns a thread.
extern "C" __global__ void __launch_bounds__(256)
head_gradient(const float* __restrict__ logits, const int* __restrict__ labels, const float* __restrict__ inv_temp,
              const float* __restrict__ logz, const float* __restrict__ entropy, const float* __restrict__ dlogprob,
              const float* __restrict__ dentropy, real* __restrict__ dlogits, int vocab) {
    long long base = (long long)blockIdx.y * vocab;
    float scale = inv_temp[blockIdx.y], z = logz[blockIdx.y], dl = dlogprob[blockIdx.y];
    float de = dentropy ? dentropy[blockIdx.y] : 0.0f, en = entropy[blockIdx.y];
    int label = labels[blockIdx.y], first = (blockIdx.x * 256 + threadIdx.x) * 4;
    float x[4], g[4];
    bool whole = (vocab & 3) == 0 && first + 4 <= vocab;
    if (whole) {
        float4 v = *(const float4*)(logits + base + first);
        x[0] = v.x; x[1] = v.y; x[2] = v.z; x[3] = v.w;
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = first + j < vocab ? logits[base + first + j] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float log_p = x[j] * scale - z, p = exp_real(log_p);
        log_p = log_p == -INF ? 0.0f : log_p;
        g[j] = -(scale * p) * fmaf(de, log_p + en, dl) + (first + j == label ? scale * dl : 0.0f);
    }
    if (whole) {
        store4(dlogits + base + first, g);
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (first + j < vocab) dlogits[base + first + j] = to_real(g[j]);
    }
}

__device__ __forceinline__ double block_sum_f64(double x, double* scratch) {
    for (int i = 16; i > 0; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    double total = 0.0;
    for (int i = 0; i < (int)(blockDim.x >> 5); i++) total += scratch[i];
    return total;
}

// partial[block] = Σ g² of the elements that the block owns, in double precision; zeros[block] = how many are zero, as a
// double: counts below 2^53 add up without rounding.
extern "C" __global__ void __launch_bounds__(256)
square_sum(const float* __restrict__ g, double* __restrict__ partial, double* __restrict__ zeros, long long n) {
    __shared__ double scratch[8];
    double sum = 0.0;
    u32 count = 0;
    long long quads = n / 4;
#pragma unroll 4
    for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < quads; i += (long long)gridDim.x * 256) {
        float4 v = ((const float4*)g)[i];
        sum += (double)v.x * v.x + (double)v.y * v.y + (double)v.z * v.z + (double)v.w * v.w;
        count += (v.x == 0.0f) + (v.y == 0.0f) + (v.z == 0.0f) + (v.w == 0.0f);
    }
    if (blockIdx.x == 0 && threadIdx.x < n % 4) {
        float v = g[quads * 4 + threadIdx.x];
        sum += (double)v * v;
        count += v == 0.0f;
    }
    sum = block_sum_f64(sum, scratch);
    __syncthreads();
    double zero = block_sum_f64(count, scratch);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        zeros[blockIdx.x] = zero;
    }
}

// out = {norm, factor}: the norm of everything summed into `partial`, and what to multiply gradients by so that it is at
// most max_norm (infinite: no limit), min(1, max_norm / (norm + 1e-6)). Not finite: factor is NaN, and `adamw` changes nothing.
// all_zeros is the sum of `zeros`.
extern "C" __global__ void __launch_bounds__(256)
clip(const double* __restrict__ partial, const double* __restrict__ zeros, float* __restrict__ out, u64* __restrict__ all_zeros,
     int count, float max_norm) {
    __shared__ double scratch[8];
    double sum = 0.0, zero = 0.0;
    for (int i = threadIdx.x; i < count; i += 256) {
        sum += partial[i];
        zero += zeros[i];
    }
    sum = sqrt(block_sum_f64(sum, scratch));
    __syncthreads();
    zero = block_sum_f64(zero, scratch);
    if (threadIdx.x == 0) {
        *all_zeros = (u64)zero;
        float norm = (float)sum;
        bool finite = norm <= 3.402823466e38f;
        out[0] = norm;
        out[1] = finite ? fminf(1.0f, max_norm / (norm + 1e-6f)) : NAN_;
    }
}

// AdamW (Loshchilov & Hutter 2019): m, v, then p −= lr · (decay · p + m̂ / (√v̂ + eps)); `copy` becomes p as `real`.
struct Adam { float lr, beta1, beta2, eps, decay, correct1, correct2; };
__device__ __forceinline__ void adam(float& p, float& m, float& v, float g, Adam a) {
    m = fmaf(a.beta1, m, (1.0f - a.beta1) * g);
    v = fmaf(a.beta2, v, (1.0f - a.beta2) * g * g);
    p -= a.lr * (a.decay * p + m * a.correct1 / (sqrtf(v * a.correct2) + a.eps));
}
extern "C" __global__ void __launch_bounds__(256)
adamw(float* __restrict__ p, float* __restrict__ m, float* __restrict__ v, const float* __restrict__ g, real* __restrict__ copy,
      const float* __restrict__ clipped, long long n, Adam a) {
    float factor = clipped[1];
    if (!(factor == factor)) return;
    long long quads = n / 4, i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i < quads) {
        float4 pp = ((float4*)p)[i], mm = ((float4*)m)[i], vv = ((float4*)v)[i], gg = ((const float4*)g)[i];
        adam(pp.x, mm.x, vv.x, gg.x * factor, a);
        adam(pp.y, mm.y, vv.y, gg.y * factor, a);
        adam(pp.z, mm.z, vv.z, gg.z * factor, a);
        adam(pp.w, mm.w, vv.w, gg.w * factor, a);
        ((float4*)p)[i] = pp;
        ((float4*)m)[i] = mm;
        ((float4*)v)[i] = vv;
        float out[4] = {pp.x, pp.y, pp.z, pp.w};
        store4(copy + i * 4, out);
    } else if (i < quads + n % 4) {
        long long j = quads * 4 + (i - quads);
        adam(p[j], m[j], v[j], g[j] * factor, a);
        copy[j] = to_real(p[j]);
    }
}
