// Draws a token from each row of f32 logits by inverse transform, and gives its log-probability.

#define BLOCK 256             // ids whose probabilities are summed first
#define MOST_BLOCKS 4096

// p = softmax(logits · inv_temp), of which the filters keep some; the drawn id is the first at which the running sum of what
// is kept passes `uniform` of all of it, in order of ids, or the most likely one (the lowest of equals) where uniform is
// negative. `drawn` holds pairs of an id and the bits of ln p, over the whole row. NaN if any logit is NaN or +inf, or all are
// −inf. One block of 512 threads per row; sums have a fixed order.
extern "C" __global__ void __launch_bounds__(512)
draw(const float* __restrict__ logits, const float* __restrict__ inv_temp, const double* __restrict__ uniform,
     const int* __restrict__ top_k, const float* __restrict__ top_p, const float* __restrict__ min_p, int2* __restrict__ drawn,
     int vocab) {
    __shared__ float sums[MOST_BLOCKS];
    __shared__ Bins bins;
    __shared__ float tops[16], wholes[16];
    __shared__ int firsts[16];
    const float* row = logits + (long long)blockIdx.x * vocab;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float scale = inv_temp[blockIdx.x];

    float top = -INF;
    int first = 0x7fffffff;
    for (int i = threadIdx.x; i < vocab; i += 512) {
        float x = row[i];
        if (x > top) { top = x; first = i; }
    }
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, top, i);
        int at = __shfl_xor_sync(0xffffffffu, first, i);
        if (other > top || (other == top && at < first)) { top = other; first = at; }
    }
    if (lane == 0) { tops[warp] = top; firsts[warp] = first; }
    __syncthreads();
    top = tops[0]; first = firsts[0];
#pragma unroll
    for (int i = 1; i < 16; i++)
        if (tops[i] > top || (tops[i] == top && firsts[i] < first)) { top = tops[i]; first = firsts[i]; }

    double u = uniform[blockIdx.x];
    Row scaled = {row, vocab, top, scale};
    u32 floor = u < 0.0 ? 0 : filter(scaled, top_k[blockIdx.x], top_p[blockIdx.x], min_p[blockIdx.x], bins);
    int blocks = (vocab + BLOCK - 1) / BLOCK;
    float whole = 0.0f; // of all ids, kept or not
    for (int b = warp; b < blocks; b += 16) {
        float sum = 0.0f, all = 0.0f;
#pragma unroll
        for (int j = 0; j < BLOCK / 32; j++) {
            int i = b * BLOCK + j * 32 + lane;
            if (i < vocab) {
                float w = scaled.at(i);
                all += w;
                sum += __float_as_uint(w) >= floor ? w : 0.0f;
            }
        }
        sum = warp_sum(sum);
        whole += warp_sum(all);
        if (lane == 0) sums[b] = sum;
    }
    if (lane == 0) wholes[warp] = whole;
    __syncthreads();
    if (warp != 0) return;

    // Lanes own stretches of blocks: their sums, and what comes before each.
    int each = (blocks + 31) / 32, begin = min(lane * each, blocks), end = min(begin + each, blocks);
    double own = 0.0;
    for (int b = begin; b < end; b++) own += sums[b];
    double before = 0.0, total = 0.0;
    for (int i = 0; i < 32; i++) {
        double other = __shfl_sync(0xffffffffu, own, i);
        if (i == lane) before = total;
        total += other;
    }
    double target = u * total, sum_all = 0.0;
    for (int i = 0; i < 16; i++) sum_all += wholes[i];
    int chosen = first;
    if (u >= 0.0) {
        // The last lane with any weight takes what rounding leaves over.
        bool here = own > 0.0 && target < before + own;
        u32 hits = __ballot_sync(0xffffffffu, here), weights = __ballot_sync(0xffffffffu, own > 0.0);
        int owner = hits ? __ffs(hits) - 1 : weights ? 31 - __clz(weights) : 0;
        int block = begin;
        double sum = before;
        if (lane == owner) {
            int last = begin;
            bool found = false;
            for (int b = begin; b < end && !found; b++) {
                if (sums[b] > 0.0f) {
                    last = b;
                    found = target < sum + sums[b];
                    if (!found) sum += sums[b];
                }
            }
            if (!found) sum -= sums[last];
            block = last;
        }
        block = __shfl_sync(0xffffffffu, block, owner);
        double rest = target - __shfl_sync(0xffffffffu, sum, owner);
        // Each lane owns eight neighbours of the block.
        float p[BLOCK / 32];
        double mine = 0.0;
#pragma unroll
        for (int j = 0; j < BLOCK / 32; j++) {
            int i = block * BLOCK + lane * (BLOCK / 32) + j;
            p[j] = i < vocab ? scaled.at(i) : 0.0f;
            if (__float_as_uint(p[j]) < floor) p[j] = 0.0f;
            mine += p[j];
        }
        double ahead = 0.0, running = 0.0;
        for (int i = 0; i < 32; i++) {
            double other = __shfl_sync(0xffffffffu, mine, i);
            if (i == lane) ahead = running;
            running += other;
        }
        here = mine > 0.0 && rest < ahead + mine;
        hits = __ballot_sync(0xffffffffu, here);
        weights = __ballot_sync(0xffffffffu, mine > 0.0);
        owner = hits ? __ffs(hits) - 1 : weights ? 31 - __clz(weights) : 0;
        int pick = -1;
        if (lane == owner) {
            bool found = false;
#pragma unroll
            for (int j = 0; j < BLOCK / 32; j++)
                if (p[j] > 0.0f && !found) {
                    pick = block * BLOCK + lane * (BLOCK / 32) + j;
                    ahead += p[j];
                    found = rest < ahead;
                }
        }
        pick = __shfl_sync(0xffffffffu, pick, owner);
        if (pick >= 0) chosen = pick;
    }
    if (lane == 0) {
        bool sound = sum_all > 0.0 && top < INF && (u32)chosen < (u32)vocab;
        float logprob = sound ? (float)((double)((row[chosen] - top) * scale) - log(sum_all)) : NAN_;
        drawn[blockIdx.x] = make_int2(sound ? chosen : 0, __float_as_int(logprob));
    }
}

// Ids with drawn tokens in the place of those below 0: −1 for that of the first pair, −2 for the second's, and so on.
extern "C" __global__ void __launch_bounds__(256)
take(const int* __restrict__ ids, const int2* __restrict__ drawn, int* __restrict__ out, int rows, int pairs) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= rows) return;
    int id = ids[i];
    out[i] = id >= 0 ? id : -(id + 1) < pairs ? drawn[-(id + 1)].x : 0;
}

// The most likely of what is less likely than (above, first), or as likely and behind it; for a block of 512 threads.
__device__ float2 likeliest(const float* row, int vocab, float above, int first, float* tops, int* firsts) {
    float top = -INF;
    int at = 0x7fffffff;
    for (int i = threadIdx.x; i < vocab; i += 512) {
        float x = row[i];
        if ((x < above || (x == above && i > first)) && (x > top || at == 0x7fffffff)) { top = x; at = i; }
    }
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, top, i);
        int where = __shfl_xor_sync(0xffffffffu, at, i);
        if (other > top || (other == top && where < at)) { top = other; at = where; }
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0) { tops[threadIdx.x >> 5] = top; firsts[threadIdx.x >> 5] = at; }
    __syncthreads();
    top = tops[0]; at = firsts[0];
#pragma unroll
    for (int i = 1; i < 16; i++)
        if (tops[i] > top || (tops[i] == top && firsts[i] < at)) { top = tops[i]; at = firsts[i]; }
    return make_float2(top, __int_as_float(at));
}

// ln softmax(logits · inv_temp) of each row's label, its place by likelihood from 1, and the `most` likeliest ids with theirs.
// `scored` has 2 + 2 · most words a row: the bits of ln p, the place, then pairs of an id and the bits of its ln p. NaN as in
// `draw`. One block of 512 threads per row; sums have a fixed order.
extern "C" __global__ void __launch_bounds__(512)
score(const float* __restrict__ logits, const int* __restrict__ labels, const float* __restrict__ inv_temp, int* __restrict__ scored,
      int vocab, int most) {
    __shared__ float tops[16], scratch[33];
    __shared__ int firsts[16];
    const float* row = logits + (long long)blockIdx.x * vocab;
    int* out = scored + (long long)blockIdx.x * (2 + 2 * most);
    int label = labels[blockIdx.x];
    float scale = inv_temp[blockIdx.x];
    bool known = (u32)label < (u32)vocab;
    float mine = known ? row[label] : NAN_;
    float2 best = likeliest(row, vocab, INF, -1, tops, firsts);
    float top = best.x, sum = 0.0f, above = 0.0f, carried = 0.0f;
    for (int i = threadIdx.x; i < vocab; i += 512) {
        float x = row[i], term = expf((x - top) * scale) - carried, next = sum + term;
        carried = next - sum - term; // what rounding lost (Kahan)
        sum = next;
        above += x > mine ? 1.0f : 0.0f;
    }
    sum = block_sum(sum, scratch);
    above = block_sum(above, scratch);
    float whole = logf(sum);
    bool sound = sum > 0.0f && top < INF;
    if (threadIdx.x == 0) {
        out[0] = __float_as_int(sound && known ? (mine - top) * scale - whole : NAN_);
        out[1] = (int)above + 1;
    }
    for (int n = 0; n < most; n++) {
        if (threadIdx.x == 0) {
            out[2 + 2 * n] = __float_as_int(best.y);
            out[3 + 2 * n] = __float_as_int(sound ? (best.x - top) * scale - whole : NAN_);
        }
        if (n + 1 < most) best = likeliest(row, vocab, best.x, __float_as_int(best.y), tops, firsts);
    }
}
