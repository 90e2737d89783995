/* What comes next, by the n-grams. See draft.h. */

#include "draft.h"

static uint64_t
key_mask(const Tables *tables, int tokens)
{
    return ((uint64_t)1 << tables->key_bits * tokens) - 1;
}

uint64_t
draft_context(const Draft *draft, Py_ssize_t node)
{
    const Tables *tables = draft->tables;
    uint64_t key = 0;
    int shift = 0;
    for (; node != ROOT; node = draft->parent[node]) {
        key |= (uint64_t)(draft->token[node] + 1) << shift;
        shift += tables->key_bits;
        if (shift == tables->key_bits * tables->orders) {
            return key;
        }
    }
    return (draft->context << shift | key) & key_mask(tables, tables->orders);
}

int
draft_share_out(Draft *draft, double weight, uint64_t key, double least)
{
    const Tables *tables = draft->tables;
    Group said[8]; /* spans of `tokens`, of longer contexts */
    int spans = 0;

    draft->words.count = 0;
    if (least < tables->least_share * weight) {
        least = tables->least_share * weight;
    }
    for (int tokens = tables->orders - 1; key != 0; tokens--) {
        PyObject *number_of = PyLong_FromUnsignedLongLong(key);
        if (number_of == NULL) {
            return -1;
        }
        PyObject *found = PyDict_GetItemWithError(draft->contexts, number_of);
        Py_DECREF(number_of);
        if (found == NULL && PyErr_Occurred()) {
            return -1;
        }
        if (found != NULL) {
            Py_ssize_t place = PyLong_AsSsize_t(found);
            if (place < 0 || place >= draft->buffers[0].len / (Py_ssize_t)sizeof(int64_t)) {
                PyErr_SetString(PyExc_ValueError, "a context of the n-grams has no place");
                return -1;
            }
            int64_t start = draft->starts[place], stop = draft->stops[place];
            if (start < 0 || stop < start || stop > draft->buffers[2].len / (Py_ssize_t)sizeof(int64_t)) {
                PyErr_SetString(PyExc_ValueError, "a context of the n-grams has no continuations");
                return -1;
            }
            Group span = {(Py_ssize_t)start, (Py_ssize_t)(stop - start)};
            for (Py_ssize_t i = span.first; i < span.first + span.count; i++) {
                Word word = {draft->tokens[i], weight * draft->shares[i]};
                if (word.share < least) {
                    break;
                }
                int known = 0;
                for (int j = 0; j < spans && !known; j++) {
                    for (Py_ssize_t k = said[j].first; k < said[j].first + said[j].count && !known; k++) {
                        known = draft->tokens[k] == word.token;
                    }
                }
                if (!known && ADD(draft->words, word) < 0) {
                    return -1;
                }
            }
            weight *= draft->left[place];
            if (weight < least) {
                break;
            }
            said[spans++] = span;
        }
        /* Without its first token: keys of fewer tokens are those already. */
        while (tokens > 0 && key <= key_mask(tables, tokens)) {
            tokens--;
        }
        key = tokens > 0 ? key & key_mask(tables, tokens) : 0;
    }
    return 0;
}

void
draft_sort_words(Draft *draft)
{
    Word *words = draft->words.items;
    for (Py_ssize_t i = 1; i < draft->words.count; i++) {
        Word word = words[i];
        Py_ssize_t j = i;
        for (; j > 0 && words[j - 1].share < word.share; j--) {
            words[j] = words[j - 1];
        }
        words[j] = word;
    }
    if (draft->words.count > draft->tables->most_words) {
        draft->words.count = draft->tables->most_words;
    }
}
