// Words of HIP and of AMD's compiler that the built-in templates do not use, for the simulator. A kernel that does not
// compile behind `templates/lib/hip/simulator.hip.j2` is compiled once more with this text behind that; so it costs
// those that do without nothing. docs/hip-words.md lists each word; a test holds the two to each other.

#undef ext_vector_type

namespace sim {

// ---- what a wave does together ----

template <typename T> SIM_INSIDE u32 bits_of(T value) {
  static_assert(sizeof(T) == 4, "an operand of 32 bits");
  u32 bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

enum { NO_LANE = ~0u };

// The lane that DPP reads for a lane; NO_LANE outside of the row. `ctrl` is the field dpp_ctrl of the ISA manuals.
SIM_INSIDE u32 dpp_source(u32 ctrl, u32 lane) {
  const u32 row = lane / 16 * 16, at = lane % 16, by = ctrl & 15;
  if (ctrl < 0x100) return lane / 4 * 4 + (ctrl >> 2 * (lane % 4) & 3);                  // quad_perm
  if (ctrl < 0x110) return at + by < 16 ? lane + by : NO_LANE;                           // row_shl
  if (ctrl < 0x120) return at >= by ? lane - by : NO_LANE;                               // row_shr
  if (ctrl < 0x130) return row + (at - by) % 16;                                         // row_ror
  if (ctrl == 0x130) return lane + 1 < WAVE ? lane + 1 : NO_LANE;                        // wave_shl:1
  if (ctrl == 0x134) return (lane + 1) % WAVE;                                           // wave_rol:1
  if (ctrl == 0x138) return lane > 0 ? lane - 1 : NO_LANE;                               // wave_shr:1
  if (ctrl == 0x13c) return (lane - 1) % WAVE;                                           // wave_ror:1
  if (ctrl == 0x140) return row + 15 - at;                                               // row_mirror
  if (ctrl == 0x141) return lane / 8 * 8 + 7 - lane % 8;                                 // row_half_mirror
  if (ctrl == 0x142) return row > 0 ? row - 1 : NO_LANE;                                 // row_bcast:15
  if (ctrl == 0x143) return lane >= 32 ? 31 : NO_LANE;                                   // row_bcast:31
  if (ctrl < 0x160) return row + by;                                                     // row_share, row_newbcast
  return row + (at ^ by);                                                                // row_xmask
}

// Whether a chip of this wave size has the control: rows of RDNA have no way into the next one.
constexpr bool has_dpp(u32 ctrl) {
  return ctrl < 0x100 || (ctrl > 0x100 && ctrl < 0x110) || (ctrl > 0x110 && ctrl < 0x120)
      || (ctrl > 0x120 && ctrl < 0x130) || ctrl == 0x140 || ctrl == 0x141 || (ctrl >= 0x150 && ctrl < 0x160)
      || (WAVE == 64 && (ctrl == 0x130 || ctrl == 0x134 || ctrl == 0x138 || ctrl == 0x13c || ctrl == 0x142
          || ctrl == 0x143))
      || (WAVE == 32 && ctrl >= 0x160 && ctrl < 0x170);
}

// `before` may have another type of as many bits, as a plain 0 beside unsigned words has.
template <u32 CTRL, u32 ROWS, u32 BANKS, bool IS_ZERO, typename O, typename T>
SIM_PLAIN static T dpp(u32 line, O before, T value) {
  static_assert(sizeof(O) == sizeof(T), "both operands are as wide");
  const T old = T(before);
  static_assert(has_dpp(CTRL), "a chip of this wave size has this DPP control");
  const u32 lane = my_lane(), parity = exchange(value, line), source = dpp_source(CTRL, lane);
  if (!(ROWS >> lane / 16 & 1) || !(BANKS >> lane % 16 / 4 & 1)) return old;
  if (source == NO_LANE) return IS_ZERO ? T(0) : old;
  return of_lane<T>(parity, source);
}

SIM_PLAIN static u32 dpp8(u32 line, u32 value, u32 selectors) {
  const u32 lane = my_lane(), parity = exchange(value, line);
  return of_lane<u32>(parity, lane / 8 * 8 + (selectors >> 3 * (lane % 8) & 7));
}

// `other_row`: of the pair of rows that a lane's row is of.
SIM_PLAIN static u32 permlane(u32 line, bool other_row, u32 value, u32 low, u32 high) {
  const u32 lane = my_lane(), parity = exchange(value, line), at = lane % 16;
  const u32 chosen = (at < 8 ? low >> 4 * at : high >> 4 * (at - 8)) & 15;
  return of_lane<u32>(parity, ((lane / 16) ^ (other_row ? 1 : 0)) * 16 + chosen);
}

SIM_PLAIN static u32 permlane64(u32 line, u32 value) {
  const u32 lane = my_lane(), parity = exchange(value, line);
  return WAVE == 64 ? of_lane<u32>(parity, lane ^ 32) : value;
}

// Each lane pushes its value to lane where / 4; of several the last one counts, and who gets none has 0.
SIM_PLAIN static u32 permute(u32 line, u32 where, u32 value) {
  struct Pushed { u32 to, value; } mine = { where / 4 % WAVE, value };
  const u32 parity = exchange(mine, line), lane = my_lane();
  u32 got = 0;
  for (u32 from = 0; from < WAVE; ++from) {
    const Pushed pushed = of_lane<Pushed>(parity, from);
    if (pushed.to == lane) got = pushed.value;
  }
  return got;
}

template <typename T> SIM_PLAIN static T bpermute(u32 line, u32 where, T value) {
  const u32 parity = exchange(value, line);
  return of_lane<T>(parity, where / 4 % WAVE);
}

SIM_PLAIN static u32 swizzle(u32 line, u32 value, u32 pattern) {
  const u32 lane = my_lane(), parity = exchange(value, line), at = lane % 32;
  const u32 source = pattern & 0x8000 ? at / 4 * 4 + (pattern >> 2 * (at % 4) & 3)
                                      : ((at & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31);
  return of_lane<u32>(parity, lane / 32 * 32 + source);
}

SIM_PLAIN static u32 mbcnt(bool is_high, u32 mask, u32 add) {
  const u32 lane = my_lane(), first = is_high ? 32 : 0;
  if (lane < first) return add;
  const u32 below = lane - first;
  return add + __builtin_popcount(below >= 32 ? mask : mask & ((1u << below) - 1));
}

// ---- numbers ----

SIM_INSIDE u32 perm(u32 high, u32 low, u32 selectors) {
  const u64 bytes = (u64)high << 32 | low;
  u32 made = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 which = selectors >> 8 * i & 255;
    u32 byte = 0xff;
    if (which < 8) byte = bytes >> 8 * which & 255;
    else if (which < 12) byte = bytes >> (16 * (which - 8) + 15) & 1 ? 0xff : 0;
    else if (which == 12) byte = 0;
    made |= byte << 8 * i;
  }
  return made;
}

// N numbers of 32 / N bits, signed or not.
template <u32 N> SIM_INSIDE long long part(u32 word, u32 i, bool is_signed) {
  const u32 width = 32 / N, bits = word >> width * i & ((1ull << width) - 1);
  return is_signed && bits >> (width - 1) ? (long long)bits - (1ll << width) : (long long)bits;
}
template <u32 N, bool A_SIGNED, bool B_SIGNED, typename T> SIM_INSIDE u32 dot(T left, T right, u32 c, bool clamps) {
  const u32 a = bits_of(left), b = bits_of(right);
  const bool is_signed = A_SIGNED || B_SIGNED;
  long long sum = is_signed ? (long long)(int)c : (long long)c;
  for (u32 i = 0; i < N; ++i) sum += part<N>(a, i, A_SIGNED) * part<N>(b, i, B_SIGNED);
  if (clamps) {
    const long long least = is_signed ? -2147483648ll : 0, most = is_signed ? 2147483647ll : 4294967295ll;
    sum = sum < least ? least : sum > most ? most : sum;
  }
  return (u32)sum;
}
SIM_INSIDE float clamped(float x, bool clamps) { return !clamps ? x : x > 1.0f ? 1.0f : x > 0.0f ? x : 0.0f; }
template <typename Pair> SIM_INSIDE float fdot2(Pair a, Pair b, float c, bool clamps)
    { return clamped((float)((double)(float)a[0] * (float)b[0] + (double)(float)a[1] * (float)b[1] + c), clamps); }
template <typename Pair> SIM_INSIDE float fdot2_bf16(Pair a, Pair b, float c, bool clamps) {
  unsigned short x[2], y[2];
  static_assert(sizeof(Pair) == 4, "two bf16");
  __builtin_memcpy(x, &a, 4);
  __builtin_memcpy(y, &b, 4);
  return clamped((float)((double)of_bf16(x[0]) * of_bf16(y[0]) + (double)of_bf16(x[1]) * of_bf16(y[1]) + c), clamps);
}
SIM_INSIDE float median(float a, float b, float c)
    { return __builtin_fmaxf(__builtin_fminf(a, b), __builtin_fminf(__builtin_fmaxf(a, b), c)); }
SIM_INSIDE u32 field(u32 word, u32 first, u32 width)
    { return word >> (first & 31) & (width & 31 ? (1u << (width & 31)) - 1 : 0); }
SIM_INSIDE int signed_field(u32 word, u32 first, u32 width) {
  const u32 bits = field(word, first, width), sign = width & 31 ? 1u << ((width & 31) - 1) : 0;
  return (int)((bits ^ sign) - sign);
}

// ---- memory ----

// As an atomic does what its order says: a fence before what releases, one behind what acquires, for other blocks.
SIM_INSIDE bool releases(int order, int scope)
    { return scope >= 4 && (order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST); }
SIM_INSIDE bool acquires(int order, int scope) {
  return scope >= 4 && (order == __ATOMIC_ACQUIRE || order == __ATOMIC_CONSUME || order == __ATOMIC_ACQ_REL
      || order == __ATOMIC_SEQ_CST);
}
SIM_INSIDE void fence_if(bool is_wanted) { if (is_wanted) device_fence(); }
SIM_INSIDE bool is_of_device(const char* scope)
    { return scope[0] == 0 || scope[0] == 'a' || scope[0] == 's' && scope[1] == 'y'; }
SIM_ATOMIC(atomic_xor, typename same<T>::type, (T)(old ^ operand))
template <typename T> SIM_PLAIN static T atomic_load(const T* where) {
  access(where, sizeof(T), sizeof(T), IS_ATOMIC, SIM_CALLER);
  T value;
  __atomic_load(where, &value, __ATOMIC_SEQ_CST);
  return value;
}
template <typename T> SIM_PLAIN static void atomic_store(T* where, typename same<T>::type value) {
  access(where, sizeof(T), sizeof(T), IS_WRITE | IS_ATOMIC, SIM_CALLER);
  __atomic_store(where, &value, __ATOMIC_SEQ_CST);
}
template <typename T> SIM_PLAIN static bool compare_exchanged(T* where, T* expected, typename same<T>::type wanted) {
  access(where, sizeof(T), sizeof(T), IS_WRITE | IS_ATOMIC, SIM_CALLER);
  return __atomic_compare_exchange(where, expected, &wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

// ---- vectors ----

// What `ext_vector_type` and `float4` make: numbers in a row, with names for the first four.
template <typename T, int N> struct Parts { T at[N]; };
template <typename T> struct Parts<T, 2> { union { T at[2]; struct { T x, y; }; struct { T lo, hi; }; }; };
template <typename T> struct Parts<T, 3> { union { T at[3]; struct { T x, y, z; }; }; };
template <typename T> struct Parts<T, 4> { union { T at[4]; struct { T x, y, z, w; }; }; };
constexpr int vector_alignment(int bytes) { return bytes & (bytes - 1) ? bytes & -bytes : bytes > 16 ? 16 : bytes; }
template <typename T, int N> struct alignas(vector_alignment(sizeof(T) * N)) Vector : Parts<T, N> {
  typedef T Element;
  Vector() = default;
  Vector(T all) { for (int i = 0; i < N; ++i) this->at[i] = all; }
  template <typename... U> Vector(T first, T second, U... rest) {
    static_assert(sizeof...(U) + 2 == N, "as many numbers as the vector has");
    const T all[] = { first, second, (T)rest... };
    for (int i = 0; i < N; ++i) this->at[i] = all[i];
  }
  template <typename U> explicit Vector(const Vector<U, N>& other)
      { for (int i = 0; i < N; ++i) this->at[i] = (T)other.at[i]; }
  T& operator[](int i) { return this->at[i]; }
  const T& operator[](int i) const { return this->at[i]; }
};
#define SIM_OPERATOR(op) \
  template <typename T, int N> SIM_INSIDE Vector<T, N> operator op(const Vector<T, N>& a, const Vector<T, N>& b) \
      { Vector<T, N> c; for (int i = 0; i < N; ++i) c.at[i] = a.at[i] op b.at[i]; return c; } \
  template <typename T, int N> SIM_INSIDE Vector<T, N> operator op(const Vector<T, N>& a, typename same<T>::type b) \
      { return a op Vector<T, N>(b); } \
  template <typename T, int N> SIM_INSIDE Vector<T, N> operator op(typename same<T>::type a, const Vector<T, N>& b) \
      { return Vector<T, N>(a) op b; } \
  template <typename T, int N, typename B> SIM_INSIDE Vector<T, N>& operator op##=(Vector<T, N>& a, const B& b) \
      { return a = a op b; }
SIM_OPERATOR(+)
SIM_OPERATOR(-)
SIM_OPERATOR(*)
SIM_OPERATOR(/)
SIM_OPERATOR(&)
SIM_OPERATOR(|)
SIM_OPERATOR(^)
template <typename T, int N> SIM_INSIDE Vector<T, N> operator-(const Vector<T, N>& a) { return Vector<T, N>((T)0) - a; }
template <typename T, int N, typename... I> SIM_INSIDE Vector<T, sizeof...(I)> shuffled(const Vector<T, N>& a,
    const Vector<T, N>& b, I... which) {
  Vector<T, sizeof...(I)> made;
  int i = 0;
  ((made.at[i++] = which < N ? a.at[which < 0 ? 0 : which] : b.at[which - N]), ...);
  return made;
}

// ---- half and bf16, each rounded to the nearest even at every operation ----

struct Half {
  _Float16 value;
  Half() = default;
  Half(float x) : value((_Float16)x) {}
  operator float() const { return (float)value; }
};
struct Bf16 {
  unsigned short bits;
  Bf16() = default;
  Bf16(float x) {
    const u32 all = __float_as_uint(x);
    bits = x != x ? 0x7fc0 : (all + 0x7fff + (all >> 16 & 1)) >> 16;
  }
  operator float() const { return of_bf16(bits); }
};
SIM_INSIDE Vector<Half, 2> to_zero(float a, float b) {
  const float both[2] = { a, b };
  Vector<Half, 2> made;
  for (int i = 0; i < 2; ++i) {
    _Float16 near = (_Float16)both[i];
    unsigned short bits;
    __builtin_memcpy(&bits, &near, 2);
    if (__builtin_fabsf((float)near) > __builtin_fabsf(both[i])) --bits;
    __builtin_memcpy(&made.at[i], &bits, 2);
  }
  return made;
}

// ---- what a kernel says ----

extern "C" int snprintf(char*, unsigned long, const char*, ...);
extern "C" long write(int, const void*, unsigned long);
// On the thread's stack, and in one write: lines of several blocks do not run into each other.
template <typename... A> SIM_PLAIN static int say(const char* format, A... values) {
  char line[1024];
  const int n_first = snprintf(line, sizeof(line), "block (%u, %u, %u), thread %u: ", context->block[0],
      context->block[1], context->block[2], context->thread->index);
  int n = snprintf(line + n_first, sizeof(line) - n_first, format, values...);
  n = n < 0 ? 0 : n < (int)sizeof(line) - n_first ? n : (int)sizeof(line) - n_first - 1;
  write(2, line, n_first + n);
  return n;
}
enum { IS_ASSERTION = 4 };
SIM_PLAIN static void failed(const char* what) {
  say("assertion `%s` failed\n", what);
  access(what, 1, 1, IS_ASSERTION, SIM_CALLER);
}

}  // namespace sim

#define __builtin_amdgcn_update_dpp(old, value, ctrl, rows, banks, bound) \
    sim::dpp<ctrl, rows, banks, bound>(__LINE__, old, value)
#define __builtin_amdgcn_mov_dpp(value, ctrl, rows, banks, bound) \
    sim::dpp<ctrl, rows, banks, true>(__LINE__, value, value)
#define __builtin_amdgcn_mov_dpp8(value, selectors) sim::dpp8(__LINE__, value, selectors)
#define __builtin_amdgcn_permlane16(old, value, low, high, ...) sim::permlane(__LINE__, false, value, low, high)
#define __builtin_amdgcn_permlanex16(old, value, low, high, ...) sim::permlane(__LINE__, true, value, low, high)
#define __builtin_amdgcn_permlane64(value) sim::permlane64(__LINE__, value)
#define __builtin_amdgcn_ds_permute(...) (int)sim::permute(__LINE__, __VA_ARGS__)
#define __builtin_amdgcn_ds_bpermute(...) sim::bpermute<int>(__LINE__, __VA_ARGS__)
#define __builtin_amdgcn_ds_swizzle(value, pattern) (int)sim::swizzle(__LINE__, value, pattern)
#define __builtin_amdgcn_readlane(...) sim::shuffle_any(__LINE__, __VA_ARGS__)
#define __builtin_amdgcn_writelane(value, lane, old) (sim_thread() % WAVE == (lane) ? (value) : (old))
#define __builtin_amdgcn_mbcnt_lo(...) sim::mbcnt(false, __VA_ARGS__)
#define __builtin_amdgcn_mbcnt_hi(...) sim::mbcnt(true, __VA_ARGS__)
#define __builtin_amdgcn_ballot_w32(vote) ((unsigned)sim::ballot(__LINE__, vote))
#define __builtin_amdgcn_ballot_w64(vote) sim::ballot(__LINE__, vote)
#define __builtin_amdgcn_wavefrontsize() ((unsigned)WAVE)
#define __lane_id() ((int)(sim_thread() % WAVE))

#define __builtin_amdgcn_perm(...) sim::perm(__VA_ARGS__)
#define __builtin_amdgcn_alignbit(high, low, by) \
    ((unsigned)(((unsigned long long)(unsigned)(high) << 32 | (unsigned)(low)) >> ((by) & 31)))
#define __builtin_amdgcn_alignbyte(high, low, by) __builtin_amdgcn_alignbit(high, low, 8 * ((by) & 3))
#define __builtin_amdgcn_ubfe(...) sim::field(__VA_ARGS__)
#define __builtin_amdgcn_sbfe(...) sim::signed_field(__VA_ARGS__)
#define __builtin_amdgcn_rcpf(x) (1.0f / (x))
#define __builtin_amdgcn_rsqf(x) (1.0f / sqrtf(x))
#define __builtin_amdgcn_sqrtf(x) sqrtf(x)
#define __builtin_amdgcn_exp2f(x) exp2f(x)
#define __builtin_amdgcn_logf(x) log2f(x)
#define __builtin_amdgcn_fractf(x) ((x) - floorf(x))
#define __builtin_amdgcn_ldexpf(x, by) __builtin_ldexpf(x, by)
#define __builtin_amdgcn_fmed3f(...) sim::median(__VA_ARGS__)
#define __builtin_amdgcn_cvt_pkrtz(...) sim::to_zero(__VA_ARGS__)
#define __builtin_amdgcn_fdot2(...) sim::fdot2(__VA_ARGS__)
#define __builtin_amdgcn_fdot2_f32_bf16(...) sim::fdot2_bf16(__VA_ARGS__)
#define __builtin_amdgcn_sdot2(...) ((int)sim::dot<2, true, true>(__VA_ARGS__))
#define __builtin_amdgcn_udot2(...) sim::dot<2, false, false>(__VA_ARGS__)
#define __builtin_amdgcn_sdot4(...) ((int)sim::dot<4, true, true>(__VA_ARGS__))
#define __builtin_amdgcn_udot4(...) sim::dot<4, false, false>(__VA_ARGS__)
#define __builtin_amdgcn_sudot4(a_signed, a, b_signed, b, c, clamps) ((int)sim::dot<4, a_signed, b_signed>(a, b, c, clamps))
#define __builtin_amdgcn_sdot8(...) ((int)sim::dot<8, true, true>(__VA_ARGS__))
#define __builtin_amdgcn_udot8(...) sim::dot<8, false, false>(__VA_ARGS__)
#define __builtin_amdgcn_sudot8(a_signed, a, b_signed, b, c, clamps) ((int)sim::dot<8, a_signed, b_signed>(a, b, c, clamps))

#define __builtin_amdgcn_fence(order, scope) sim::fence_if(sim::is_of_device(scope))
#define __builtin_amdgcn_s_barrier() sim::barrier(__LINE__)
#define __builtin_amdgcn_s_barrier_signal(which) ((void)0)
#define __builtin_amdgcn_s_barrier_wait(which) sim::barrier(__LINE__)
#define __threadfence_system() sim::device_fence()
#define __builtin_amdgcn_sched_barrier(mask) ((void)0)
#define __builtin_amdgcn_sched_group_barrier(mask, size, group) ((void)0)
#define __builtin_amdgcn_iglp_opt(which) ((void)0)
#define __builtin_amdgcn_s_sleep(n) ((void)0)
#define __builtin_amdgcn_s_setprio(n) ((void)0)
#define __builtin_amdgcn_s_waitcnt(n) ((void)0)
#define __builtin_nontemporal_load(where) (*(where))
#define __builtin_nontemporal_store(value, where) ((void)(*(where) = (value)))

#define __HIP_MEMORY_SCOPE_SINGLETHREAD 1
#define __HIP_MEMORY_SCOPE_WAVEFRONT 2
#define __HIP_MEMORY_SCOPE_WORKGROUP 3
#define __HIP_MEMORY_SCOPE_AGENT 4
#define __HIP_MEMORY_SCOPE_SYSTEM 5
#define SIM_ORDERED(order, scope, what) ({ \
    sim::fence_if(sim::releases(order, scope)); \
    const auto sim_was = what; \
    sim::fence_if(sim::acquires(order, scope)); \
    sim_was; })
#define __hip_atomic_load(where, order, scope) SIM_ORDERED(order, scope, sim::atomic_load(where))
#define __hip_atomic_store(where, value, order, scope) \
    (sim::fence_if(sim::releases(order, scope)), sim::atomic_store(where, value))
#define __hip_atomic_exchange(where, value, order, scope) \
    SIM_ORDERED(order, scope, sim::atomic_exchange(where, value))
#define __hip_atomic_compare_exchange_strong(where, expected, value, order, order_if_not, scope) \
    SIM_ORDERED(order, scope, sim::compare_exchanged(where, expected, value))
#define __hip_atomic_compare_exchange_weak __hip_atomic_compare_exchange_strong
#define __hip_atomic_fetch_add(where, value, order, scope) SIM_ORDERED(order, scope, sim::atomic_add(where, value))
#define __hip_atomic_fetch_sub(where, value, order, scope) SIM_ORDERED(order, scope, sim::atomic_sub(where, value))
#define __hip_atomic_fetch_and(where, value, order, scope) SIM_ORDERED(order, scope, sim::atomic_and(where, value))
#define __hip_atomic_fetch_or(where, value, order, scope) SIM_ORDERED(order, scope, sim::atomic_or(where, value))
#define __hip_atomic_fetch_xor(where, value, order, scope) SIM_ORDERED(order, scope, sim::atomic_xor(where, value))
#define __hip_atomic_fetch_min(where, value, order, scope) SIM_ORDERED(order, scope, sim::atomic_min(where, value))
#define __hip_atomic_fetch_max(where, value, order, scope) SIM_ORDERED(order, scope, sim::atomic_max(where, value))
#define atomicXor sim::atomic_xor
#define unsafeAtomicAdd sim::atomic_add

#define blockDim (sim_dim3{ (unsigned)BLOCK, 1, 1 })
#define warpSize ((int)WAVE)

template <typename A, typename B> SIM_INSIDE auto min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
template <typename A, typename B> SIM_INSIDE auto max(A a, B b) -> decltype(a + b) { return a > b ? a : b; }
SIM_INSIDE int abs(int x) { return x < 0 ? -x : x; }
SIM_INSIDE unsigned __brev(unsigned x) {
  unsigned made = 0;
  for (int i = 0; i < 32; ++i) made |= (x >> i & 1) << (31 - i);
  return made;
}
SIM_INSIDE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
SIM_INSIDE int __mul24(int a, int b) { return ((a << 8) >> 8) * ((b << 8) >> 8); }
SIM_INSIDE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
SIM_INSIDE float __frsqrt_rn(float x) { return rsqrtf(x); }
SIM_INSIDE float __fsqrt_rn(float x) { return sqrtf(x); }
SIM_INSIDE float __saturatef(float x) { return sim::clamped(x, true); }
extern "C" {
float tanhf(float); float erff(float); float exp10f(float); float expm1f(float); float log1pf(float);
float roundf(float); float truncf(float); float fmodf(float, float); float copysignf(float, float);
}

typedef sim::Vector<float, 2> float2;
typedef sim::Vector<float, 3> float3;
typedef sim::Vector<float, 4> float4;
typedef sim::Vector<double, 2> double2;
typedef sim::Vector<int, 2> int2;
typedef sim::Vector<int, 3> int3;
typedef sim::Vector<int, 4> int4;
typedef sim::Vector<unsigned, 2> uint2;
typedef sim::Vector<unsigned, 3> uint3;
typedef sim::Vector<unsigned, 4> uint4;
typedef sim::Vector<short, 2> short2;
typedef sim::Vector<short, 4> short4;
typedef sim::Vector<unsigned short, 2> ushort2;
typedef sim::Vector<unsigned short, 4> ushort4;
typedef sim::Vector<signed char, 4> char4;
typedef sim::Vector<unsigned char, 4> uchar4;
#define make_float2(...) (float2{ __VA_ARGS__ })
#define make_float3(...) (float3{ __VA_ARGS__ })
#define make_float4(...) (float4{ __VA_ARGS__ })
#define make_int2(...) (int2{ __VA_ARGS__ })
#define make_int4(...) (int4{ __VA_ARGS__ })
#define make_uint2(...) (uint2{ __VA_ARGS__ })
#define make_uint4(...) (uint4{ __VA_ARGS__ })
#define __builtin_shufflevector(...) sim::shuffled(__VA_ARGS__)

typedef sim::Half __half;
typedef sim::Half half;
typedef sim::Vector<sim::Half, 2> __half2;
typedef sim::Vector<sim::Half, 2> half2;
#define __bf16 sim::Bf16
typedef sim::Bf16 __hip_bfloat16;
typedef sim::Vector<sim::Bf16, 2> __hip_bfloat162;
SIM_INSIDE half __float2half(float x) { return half(x); }
SIM_INSIDE float __half2float(half x) { return (float)x; }
SIM_INSIDE __hip_bfloat16 __float2bfloat16(float x) { return __hip_bfloat16(x); }
SIM_INSIDE float __bfloat162float(__hip_bfloat16 x) { return (float)x; }

#define printf(...) sim::say(__VA_ARGS__)
#define assert(...) ((__VA_ARGS__) ? (void)0 : sim::failed(#__VA_ARGS__))
