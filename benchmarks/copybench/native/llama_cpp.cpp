// C entry points, for ctypes, to llama.cpp's own drafting: its driver (common/speculative.cpp) and its lookup cache.
#include "log.h"
#include "ngram-cache.h"
#include "speculative.h"

#include <algorithm>
#include <cstring>

// Of the rest of llama.cpp, drafting calls these: no log, and no clock of its own.
int common_log_get_verbosity_thold(void) { return -1; }
common_time_meas::common_time_meas(int64_t & total, bool) : t_start_us(-1), t_acc(total) {}
common_time_meas::~common_time_meas() {}
int64_t ggml_time_ms(void) { return 0; }

namespace {

struct Row {
    common_params_speculative params;
    common_speculative * driver = nullptr;  // null: lookup, called as examples/lookup calls it
    llama_tokens text;                      // all tokens but the last, as the driver wants them
    llama_token last = 0;
    llama_tokens draft;
    common_ngram_cache context, dynamic, fixed;
    llama_tokens seen;
};

}  // namespace

extern "C" {

// kind: a name of common_speculative_type_from_name, or "lookup". key, least: the length of the n-gram that must match,
// and the fewest tokens (ngram-mod) or hits (ngram-map) of a draft. most: the most tokens of a draft.
void * row_new(const char * kind, const int32_t * tokens, int32_t count, int32_t key, int32_t least, int32_t most) {
    Row * row = new Row;
    row->text.assign(tokens, tokens + count - 1);
    row->last = tokens[count - 1];
    if (std::strcmp(kind, "lookup") == 0) {
        return row;
    }
    row->params.types = { common_speculative_type_from_name(kind) };
    row->params.ngram_mod.n_match = key;
    row->params.ngram_mod.n_min = std::min(least, most);
    row->params.ngram_mod.n_max = most;
    for (auto * map : { &row->params.ngram_simple, &row->params.ngram_map_k, &row->params.ngram_map_k4v }) {
        map->size_n = key;
        map->size_m = most;
        map->min_hits = least;
    }
    row->driver = common_speculative_init(row->params, 1);
    common_speculative_begin(row->driver, 0, row->text);
    return row;
}

int32_t row_draft(void * given, int32_t most, int32_t * out) {
    Row * row = (Row *) given;
    row->draft.clear();
    if (row->driver == nullptr) {
        llama_tokens all = row->text;
        all.push_back(row->last);
        const int fresh = all.size() - row->seen.size();
        row->seen = all;
        common_ngram_cache_update(row->context, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, row->seen, fresh, false);
        row->draft.push_back(row->last);
        common_ngram_cache_draft(
            all, row->draft, most, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, row->context, row->dynamic, row->fixed);
        row->draft.erase(row->draft.begin());
    } else {
        auto & asked = common_speculative_get_draft_params(row->driver, 0);
        asked = { true, most, (llama_pos) row->text.size(), row->last, &row->text, &row->draft };
        common_speculative_draft(row->driver);
    }
    std::copy(row->draft.begin(), row->draft.end(), out);
    return row->draft.size();
}

// tokens: those of the draft that were accepted, and the model's own last one.
void row_accept(void * given, const int32_t * tokens, int32_t count) {
    Row * row = (Row *) given;
    if (row->driver != nullptr && !row->draft.empty()) {
        common_speculative_accept(row->driver, 0, std::min<int32_t>(count - 1, row->draft.size()));
    }
    row->text.push_back(row->last);
    row->text.insert(row->text.end(), tokens, tokens + count - 1);
    row->last = tokens[count - 1];
    row->draft.clear();
}

void row_free(void * given) {
    Row * row = (Row *) given;
    common_speculative_free(row->driver);
    delete row;
}

}  // extern "C"
