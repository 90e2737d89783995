/* Where an edited text goes on after a difference: `resumptions.columns` in C, with n-grams. See draft.h.
 *
 * `anchor` is the position at which a copy broke off, `since` the number of output tokens since then. The copy may
 * resume `shift` positions after the anchor. The odds of each shift are returned as a column of a situation (see
 * situations.py): `even_column` stands for odds of 1, and they double with every second column. Small words (such as
 * "the") and word pieces (tokens that continue a word) are sets of tokens that the n-grams hold.
 */

#include "draft.h"

#define WEIGHTS 64 /* more than there are; `make_odds` checks */
#define LEVELS 8 /* the same of expected probabilities, and of shifts */

/* Constants of resumptions.py and situations.py. */
typedef struct {
    double weights[WEIGHTS], expected[LEVELS];
    int levels, shifts, even_column, stride;
} Odds;

/* Numbers of the features, as in resumptions.py. */
static int
first_later(const Odds *odds)
{
    return 4 * odds->shifts - odds->shifts;
}

static int
first_much_later(const Odds *odds)
{
    return first_later(odds) + 3 * odds->shifts;
}

static int
piece_feature(const Odds *odds)
{
    return first_much_later(odds) + 3;
}

static void
free_odds(PyObject *capsule)
{
    PyMem_Free(PyCapsule_GetPointer(capsule, "copyspec.Odds"));
}

/* The finite numbers of a list or tuple, of which there are `count`. */
static int
take_numbers(const char *name, PyObject *sequence, Py_ssize_t count, double *numbers)
{
    if ((!PyList_Check(sequence) && !PyTuple_Check(sequence)) || PySequence_Fast_GET_SIZE(sequence) != count) {
        PyErr_Format(PyExc_ValueError, "%s are a list or a tuple of %zd, got %R", name, count, sequence);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (get_number(sequence, i, &numbers[i]) < 0) {
            return -1;
        }
        if (!isfinite(numbers[i])) {
            return draft_wrong_number("a weight is %R; all are finite", numbers[i]);
        }
    }
    return 0;
}

PyObject *
draft_make_odds(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *weights, *expected;
    Odds *odds = PyMem_Calloc(1, sizeof(Odds));
    if (odds == NULL) {
        return PyErr_NoMemory();
    }
    if (!PyArg_ParseTuple(args, "OOiii", &weights, &expected, &odds->shifts, &odds->even_column, &odds->stride)) {
        PyMem_Free(odds);
        return NULL;
    }
    const Py_ssize_t levels = PyTuple_Check(expected) ? PyTuple_GET_SIZE(expected) : -1;
    if (odds->shifts < 1 || odds->shifts > LEVELS || levels < 0 || levels > LEVELS || odds->stride < 1 ||
        odds->stride > TABLE_END || odds->even_column < 0 || odds->even_column >= odds->stride ||
        piece_feature(odds) + 2 + levels > WEIGHTS) {
        PyErr_Format(PyExc_ValueError, "%d shifts, %zd levels, column %d of %d", odds->shifts, levels,
                     odds->even_column, odds->stride);
        PyMem_Free(odds);
        return NULL;
    }
    odds->levels = (int)levels;
    if (take_numbers("expected probabilities", expected, levels, odds->expected) < 0 ||
        take_numbers("weights", weights, piece_feature(odds) + 2 + levels, odds->weights) < 0) {
        PyMem_Free(odds);
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(odds, "copyspec.Odds", free_odds);
    if (capsule == NULL) {
        PyMem_Free(odds);
    }
    return capsule;
}

/* Whether the token at `at` is in `tokens`, a set, and which one it is; -1 with an exception. */
static int
is_among(PyObject *text, Py_ssize_t at, PyObject *tokens, int64_t *token)
{
    PyObject *item = draft_item(text, at);
    int found = item == NULL || draft_integer(item, token) < 0 ? -1 : PySet_Contains(tokens, item);
    Py_XDECREF(item);
    return found;
}

/* The weight of `token` by its probability in `draft->words`, what the n-grams predict; 0 if it is not among them. */
static double
expected_weight(const Odds *odds, const Draft *draft, int64_t token)
{
    for (Py_ssize_t i = 0; i < draft->words.count; i++) {
        if (draft->words.items[i].token == token) {
            int level = 0;
            for (int j = 0; j < odds->levels; j++) {
                level += draft->words.items[i].share >= odds->expected[j];
            }
            return odds->weights[piece_feature(odds) + 1 + level];
        }
    }
    return 0.0;
}

/* `resumptions.features` of a position after `since` tokens, as the sum of their weights. `classes`: 2 if the output
 * ends with a small word, plus 1 if one stands at the anchor. */
static int
weigh(const Odds *odds, const Draft *draft, int64_t since, int64_t shift, Py_ssize_t at, int classes,
      PyObject *word_pieces, double *weight)
{
    Sum sum = {0.0, 0.0};
    int64_t token;
    const int is_piece = is_among(draft->text, at, word_pieces, &token);
    if (is_piece < 0) {
        return -1;
    }
    if (since == 1) {
        add_to(&sum, odds->weights[4 * shift + classes]);
    } else if (since < 4) {
        add_to(&sum, odds->weights[first_later(odds) + (since - 1) * odds->shifts + shift]);
    } else {
        add_to(&sum, odds->weights[first_much_later(odds) + (shift == 0 ? 0 : shift == since ? 1 : 2)]);
    }
    if (is_piece) {
        add_to(&sum, odds->weights[piece_feature(odds)]);
    }
    add_to(&sum, expected_weight(odds, draft, token));
    *weight = summed(sum);
    return 0;
}

/* The columns of all shifts, as a list. */
static PyObject *
make_columns(const Odds *odds, const Draft *draft, Py_ssize_t anchor, int64_t since, PyObject *shifts,
             PyObject *small_words, PyObject *word_pieces)
{
    int64_t token;
    const int output_is_small = is_among(draft->text, draft->end - 1, small_words, &token);
    const int source_is_small = output_is_small < 0 ? -1 : is_among(draft->text, anchor, small_words, &token);
    PyObject *columns = source_is_small < 0 ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; columns != NULL && i < PyList_GET_SIZE(shifts); i++) {
        int64_t shift;
        double weight;
        PyObject *column = NULL;
        if (get_integer(shifts, i, &shift) < 0) {
            Py_CLEAR(columns);
            break;
        }
        if (shift < 0 || shift >= draft->end - anchor || (since < 4 && shift >= odds->shifts)) {
            PyErr_Format(PyExc_ValueError, "shift %lld after %lld tokens, from %zd of %zd positions", (long long)shift,
                         (long long)since, anchor, draft->end);
        } else if (weigh(odds, draft, since, shift, anchor + (Py_ssize_t)shift, 2 * output_is_small + source_is_small,
                         word_pieces, &weight) == 0) {
            const double rounded = odds->even_column + rint(weight); /* half to even, as `round` */
            column = PyLong_FromLong(rounded < 0.0                ? 0
                                     : rounded > odds->stride - 1 ? odds->stride - 1
                                                                  : (long)rounded);
        }
        if (column == NULL || PyList_Append(columns, column) < 0) {
            Py_CLEAR(columns);
        }
        Py_XDECREF(column);
    }
    return columns;
}

PyObject *
draft_columns(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tables, *capsule, *shifts, *small_words, *word_pieces, *ngrams, *columns = NULL;
    Py_ssize_t anchor, since;
    Draft draft = {0};

    if (!PyArg_ParseTuple(args, "OOO!nnO!OOO", &tables, &capsule, &PyList_Type, &draft.text, &anchor, &since,
                          &PyList_Type, &shifts, &small_words, &word_pieces, &ngrams)) {
        return NULL;
    }
    const Odds *odds = PyCapsule_GetPointer(capsule, "copyspec.Odds");
    draft.tables = odds == NULL ? NULL : PyCapsule_GetPointer(tables, "copyspec.Tables");
    if (draft.tables == NULL) {
        return NULL;
    }
    if (!PyAnySet_Check(small_words) || !PyAnySet_Check(word_pieces)) {
        PyErr_SetString(PyExc_TypeError, "small words and pieces of words are sets");
        return NULL;
    }
    draft.end = PyList_GET_SIZE(draft.text);
    if (anchor < 0 || anchor >= draft.end || since < 1) {
        PyErr_Format(PyExc_ValueError, "%zd tokens after a break at %zd of %zd positions", since, anchor, draft.end);
        return NULL;
    }
    if (draft_take_ngrams(&draft, ngrams) == 0 &&
        draft_share_out(&draft, 1.0, draft.context, draft.tables->min_share) == 0) {
        columns = make_columns(odds, &draft, anchor, since, shifts, small_words, word_pieces);
    }
    draft_free(&draft);
    return columns;
}
