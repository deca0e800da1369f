// Draws a token from each row of f32 logits by inverse transform, and gives its log-probability.

#define BLOCK 256             // ids whose probabilities are summed first
#define MOST_BLOCKS 4096

// p = softmax(logits · inv_temp); the drawn id is the first at which the running sum of p passes `uniform`, in order of
// ids, or the most likely one (the lowest of equals) where uniform is negative. NaN if any logit is NaN or +inf, or all
// are −inf. One block of 512 threads per row; sums have a fixed order.
extern "C" __global__ void __launch_bounds__(512)
draw(const float* __restrict__ logits, const float* __restrict__ inv_temp, const double* __restrict__ uniform, int* __restrict__ ids,
     float* __restrict__ logprob, int vocab) {
    __shared__ float sums[MOST_BLOCKS];
    __shared__ float tops[16];
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

    int blocks = (vocab + BLOCK - 1) / BLOCK;
    for (int b = warp; b < blocks; b += 16) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < BLOCK / 32; j++) {
            int i = b * BLOCK + j * 32 + lane;
            if (i < vocab) sum += expf((row[i] - top) * scale);
        }
        sum = warp_sum(sum);
        if (lane == 0) sums[b] = sum;
    }
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
    double u = uniform[blockIdx.x], target = u * total;
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
            p[j] = i < vocab ? expf((row[i] - top) * scale) : 0.0f;
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
        bool sound = total > 0.0 && top < INF && (u32)chosen < (u32)vocab;
        ids[blockIdx.x] = sound ? chosen : 0;
        logprob[blockIdx.x] = sound ? (float)((double)((row[chosen] - top) * scale) - log(total)) : NAN_;
    }
}
