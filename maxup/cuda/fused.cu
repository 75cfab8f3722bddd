// The kernel of `maxup.cuda.fused`: relu(scale * conv3x3(x) + shift + other) in one pass over memory.
//
// Tensors are bfloat16 in channels_last format. Macros defined before this text: HEIGHT, WIDTH and N_IN (channels) of
// x, N_OUT, STRIDE, ADD (whether `other` is given), FLOAT_WEIGHT (otherwise bfloat16), EPS, and the split of the work: a
// block has WARPS warps, a multiprocessor at least BLOCKS blocks, and a warp computes OUTPUTS channels of 8 columns by
// ROWS rows at a time.
//
// Columns are numbered across all images. A warp moves down 8 columns, so that each row it reads serves three output
// rows. Inputs go from memory to registers and into matrix products; filters stay in shared memory. A product may sum
// inputs and list outputs in any order, so each lane takes neighboring ones, which it reads and writes together.

#define OUT_HEIGHT ((HEIGHT + STRIDE - 1) / STRIDE)
#define OUT_WIDTH ((WIDTH + STRIDE - 1) / STRIDE)
#define GROUP (N_IN < 32 ? N_IN : 32)      // input channels of a pixel read at once, a quarter per lane
#define STEPS (GROUP / 16)                 // matrix products per group
#define STAGES (N_IN / GROUP * 3)          // (group of input channels, left / center / right neighbor)
#define IN_ROWS ((ROWS - 1) * STRIDE + 3)  // rows of x that ROWS output rows read
#define TILES (OUTPUTS / 16)               // matrix products for all outputs
#define PIECES (TILES * STEPS)             // 16-byte pieces of one tap's filters per lane
#define FILTERS (N_IN / GROUP * 9 * PIECES * 32)  // pieces for all lanes, taps and inputs
#define OUTSIDE(row) (ROWS == OUT_HEIGHT && ((row) == 0 || (row) > HEIGHT))  // outside the image, if all rows are read

typedef unsigned short Half;  // the bits of a bfloat16
#if GROUP == 16
typedef uint2 Input;
#else
typedef uint4 Input;
#endif
#if TILES == 1
typedef unsigned Output;
#elif TILES == 2
typedef uint2 Output;
#else
typedef uint4 Output;
#endif
#if FLOAT_WEIGHT
typedef float Weight;
#else
typedef Half Weight;
#endif

// Pack two floats as bfloat16 into one word, the first in the low half.
static __device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Pack relu of two floats.
static __device__ __forceinline__ unsigned pack_relu(float low, float high) {
    unsigned both;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Read the input at an address, or zeros outside the image.
static __device__ __forceinline__ Input read(const Half* at, bool inside) {
    Input value;
#if GROUP == 16
    asm("{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0; @p ld.global.nc.v2.u32 {%0, %1}, [%2]; }"
        : "=&r"(value.x), "=&r"(value.y) : "l"(at), "r"((unsigned)inside));
#else
    asm("{ .reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
        " @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w) : "l"(at), "r"((unsigned)inside));
#endif
    return value;
}

// total += a * b: 16 outputs by 16 inputs, 16 inputs by 8 pixels.
static __device__ __forceinline__ void multiply(float* total, uint4 a, const unsigned* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(total[0]), "+f"(total[1]), "+f"(total[2]), "+f"(total[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
}

// Read four neighboring weights as bfloat16.
static __device__ __forceinline__ uint2 quad(const Weight* at) {
#if FLOAT_WEIGHT
    float4 values = *(const float4*)at;
    return make_uint2(pack(values.x, values.y), pack(values.z, values.w));
#else
    return *(const uint2*)at;
#endif
}

// What a lane reads and writes for a tile of 8 columns by ROWS rows.
struct Place {
    const Half* from;   // inputs of one pixel in the first row
    bool left, right;   // whether the pixel has these neighbors
    bool above, below;  // whether rows exist above the first and below the last
    unsigned to[2];     // offsets of two output pixels in the first row
    bool inside[2];     // whether these pixels exist
};

static __device__ __forceinline__ Place place_of(unsigned task, unsigned columns, const Half* x) {
    Place place;
    unsigned lane = threadIdx.x % 32, top = task % (OUT_HEIGHT / ROWS) * ROWS, strip = task / (OUT_HEIGHT / ROWS) * 8;
    unsigned read = min(strip + lane / 8 + lane / 4 % 2 * 4, columns - 1), column = read % OUT_WIDTH * STRIDE;
    place.from = x + ((read / OUT_WIDTH * HEIGHT + top * STRIDE) * WIDTH + column) * N_IN + lane % 4 * (GROUP / 4);
    place.left = column > 0;
    place.right = column + 1 < WIDTH;
    place.above = top > 0;
    place.below = (top + ROWS - 1) * STRIDE + 1 < HEIGHT;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned written = strip + lane % 4 + i * 4;
        place.inside[i] = written < columns;
        written = min(written, columns - 1);
        place.to[i] = ((written / OUT_WIDTH * OUT_HEIGHT + top) * OUT_WIDTH + written % OUT_WIDTH) * N_OUT +
                      blockIdx.y * OUTPUTS + lane / 4 * (OUTPUTS / 8);
    }
    return place;
}

// Read the inputs of a stage: one group of channels of the left neighbors, the pixels or the right neighbors.
static __device__ __forceinline__ void read_stage(Input (&seen)[IN_ROWS], const Place& place, int stage) {
    int group = stage / 3, dx = stage % 3;
#pragma unroll
    for (int row = 0; row < IN_ROWS; row++) {
        bool inside = (dx == 0 ? place.left : dx == 2 ? place.right : true) &&
                      (row == 0 ? place.above : row == IN_ROWS - 1 ? place.below : true);
        if (!OUTSIDE(row))
            seen[row] = read(place.from + ((row - 1) * WIDTH + dx - 1) * N_IN + group * GROUP, inside);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
conv_norm_relu(const Half* __restrict__ x, const Weight* __restrict__ weight, const float* __restrict__ mean,
               const float* __restrict__ variance, const float* __restrict__ gamma, const float* __restrict__ beta,
               const Half* __restrict__ other, Half* __restrict__ out, unsigned columns) {
    __shared__ uint4 filters[FILTERS];
    __shared__ float scale[OUTPUTS], shift[OUTPUTS];
    unsigned lane = threadIdx.x % 32, first = blockIdx.y * OUTPUTS;
    unsigned tasks = (columns + 7) / 8 * (OUT_HEIGHT / ROWS), task = blockIdx.x * WARPS + threadIdx.x / 32;

    Input seen[IN_ROWS];
    Place place = place_of(task, columns, x);
    read_stage(seen, place, 0);  // in flight while the filters are prepared

#pragma unroll
    for (unsigned start = 0; start < FILTERS; start += WARPS * 32) {
        unsigned i = start + threadIdx.x, piece = i / 32 % PIECES, tap = i / (32 * PIECES) % 9;
        unsigned output = first + lane / 4 * (2 * TILES) + piece / STEPS * 2;
        unsigned input = i / (32 * PIECES * 9) * GROUP + lane % 4 * (GROUP / 4) + piece % STEPS * 4;
        const Weight* at = weight + (output * 9 + tap) * N_IN + input;
        if (start + WARPS * 32 <= FILTERS || i < FILTERS) {
            uint2 one = quad(at), two = quad(at + 9 * N_IN);
            filters[i] = make_uint4(one.x, two.x, one.y, two.y);
        }
    }
    if (threadIdx.x < OUTPUTS) {
        unsigned output = first + threadIdx.x;
        float factor = gamma[output] * rsqrtf(variance[output] + EPS);
        scale[threadIdx.x] = factor;
        shift[threadIdx.x] = beta[output] - mean[output] * factor;
    }
    __syncthreads();

    while (task < tasks) {
        float total[ROWS][TILES][4] = {};
        Output others[ROWS][2];
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            Input next[IN_ROWS];
            if (stage + 1 < STAGES)
                read_stage(next, place, stage + 1);
#pragma unroll
            for (int i = 0; ADD && stage + 1 == STAGES && i < ROWS * 2; i++)
                others[i / 2][i % 2] = *(const Output*)(other + place.to[i % 2] + i / 2 * OUT_WIDTH * N_OUT);
#pragma unroll
            for (int dy = 0; dy < 3; dy++) {
                uint4 taken[PIECES];
#pragma unroll
                for (int piece = 0; piece < PIECES; piece++)
                    taken[piece] = filters[((stage / 3 * 9 + dy * 3 + stage % 3) * PIECES + piece) * 32 + lane];
#pragma unroll
                for (int step = 0; step < STEPS; step++)
#pragma unroll
                    for (int row = 0; row < ROWS; row++)
#pragma unroll
                        for (int tile = 0; tile < TILES; tile++)
                            if (!OUTSIDE(row * STRIDE + dy))
                                multiply(total[row][tile], taken[tile * STEPS + step],
                                         (const unsigned*)&seen[row * STRIDE + dy] + 2 * step);
            }
#pragma unroll
            for (int row = 0; stage + 1 < STAGES && row < IN_ROWS; row++)
                if (!OUTSIDE(row))
                    seen[row] = next[row];
        }

#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                Output result;
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    unsigned output = lane / 4 * (2 * TILES) + 2 * tile;
                    float low = total[row][tile][i] * scale[output] + shift[output];
                    float high = total[row][tile][i + 2] * scale[output + 1] + shift[output + 1];
                    if (ADD) {
                        unsigned both = ((const unsigned*)&others[row][i])[tile];
                        low += __uint_as_float(both << 16);
                        high += __uint_as_float(both & 0xffff0000u);
                    }
                    ((unsigned*)&result)[tile] = pack_relu(low, high);
                }
                if (place.inside[i])
                    *(Output*)(out + place.to[i] + row * OUT_WIDTH * N_OUT) = result;
            }

        task += gridDim.x * WARPS;
        place = place_of(task, columns, x);
        if (task < tasks)
            read_stage(seen, place, 0);
    }
}
