// Order specification of `moe_route`.
#include <vector>

#include "kforge/math.h"

namespace kf {
namespace spec {

// As an integer that is larger where the logit is: NaN above all, zeros of both signs equal.
inline int32_t rank_of(float logit) {
    if (logit != logit) return INT32_MAX;
    const int32_t b = static_cast<int32_t>(bits(logit + 0.0f));
    return b ^ (b >> 31 & INT32_MAX);
}

}  // namespace spec
}  // namespace kf

// all: weights are parts of the softmax over all experts, else the softmax over the chosen ones.
extern "C" void kf_spec_moe_route(int64_t T, int64_t E, int64_t top, int64_t all, const float *logits, int32_t *ids,
                                  float *weights, int32_t *order, int32_t *expert_start) {
    for (int64_t t = 0; t < T; ++t) {
        const float *row = logits + t * E;
        int32_t *chosen = ids + t * top;
        float *weight = weights + t * top;
        std::vector<bool> taken(E);
        for (int64_t j = 0; j < top; ++j) {
            int64_t best = -1;
            for (int64_t e = 0; e < E; ++e)
                if (!taken[e] && (best < 0 || kf::spec::rank_of(row[e]) > kf::spec::rank_of(row[best]))) best = e;
            taken[best] = true;
            chosen[j] = static_cast<int32_t>(best);
        }
        const float largest = row[chosen[0]];
        for (int64_t j = 0; j < top; ++j) weight[j] = kf::exp(row[chosen[j]] - largest);
        float sum = 0;
        if (all) {
            float lanes[16] = {};
            for (int64_t e = 0; e < E; ++e) lanes[e % 16] += kf::exp(row[e] - largest);
            sum = kf::tree_sum(lanes);
        } else {
            for (int64_t j = 0; j < top; ++j) sum += weight[j];
        }
        for (int64_t j = 0; j < top; ++j) weight[j] = weight[j] / sum;
    }
    int32_t place = 0;
    for (int64_t e = 0; e < E; ++e) {
        expert_start[e] = place;
        for (int64_t slot = 0; slot < T * top; ++slot)
            if (ids[slot] == e) order[place++] = static_cast<int32_t>(slot);
    }
    expert_start[E] = place;
}
