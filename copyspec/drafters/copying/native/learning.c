/* Learning from the tokens that the output took of a tree: `learning.learn` in C. See draft.h.
 *
 * This writes to the caller's lists of weights and dictionary of substitutes, and to the records in their buffer. */

#include "draft.h"

enum { SHORT_AT_ROOT, SHORT_DEEPER, LONG, KINDS_OF_RECORDS }; /* of estimates.py */
enum { RIGHT, WRONG, EXPECTED, DOUBTED, NUMBERS }; /* of a record */

/* Constants of estimates.py, situations.py and substitutes.py. */
typedef struct {
    double decay, prior_count, prior_count_wrong, max_factor;
    int stride, short_length, seen, kept;
} Rates;

typedef struct {
    const Rates *rates;
    PyObject *parents, *drafted, *scores, *positions, *cursors; /* of the tree; lists of the caller's, as all here */
    PyTypeObject *groups; /* which the cursors may be, too */
    PyObject *text, *tokens, *substitutes, *priors, *at_root, *deeper;
    Py_ssize_t output_start;
    double *records; /* [records_of, NUMBERS] */
    int64_t records_of;
    ARRAY(int64_t) touched; /* numbers of records */
} Walk;

static void
free_rates(PyObject *capsule)
{
    PyMem_Free(PyCapsule_GetPointer(capsule, "copyspec.Rates"));
}

PyObject *
draft_make_rates(PyObject *Py_UNUSED(module), PyObject *args)
{
    Rates rates;
    if (!PyArg_ParseTuple(args, "ddddiiii", &rates.decay, &rates.prior_count, &rates.prior_count_wrong,
                          &rates.max_factor, &rates.stride, &rates.short_length, &rates.seen, &rates.kept)) {
        return NULL;
    }
    const double above[] = {rates.decay, rates.prior_count, rates.prior_count_wrong, rates.max_factor};
    for (int i = 0; i < 4; i++) {
        if (!(above[i] > 0.0 && above[i] < INFINITY)) {
            draft_wrong_number("a constant is %R; all are above 0", above[i]);
            return NULL;
        }
    }
    if (rates.short_length < 1 || rates.stride <= rates.short_length || rates.stride > TABLE_END || rates.seen < 1 ||
        rates.seen > 1000 || rates.kept < 1 || rates.kept > 1000) {
        PyErr_Format(PyExc_ValueError, "short %d of stride %d, seen %d, kept %d", rates.short_length, rates.stride,
                     rates.seen, rates.kept);
        return NULL;
    }
    Rates *held = PyMem_Malloc(sizeof(Rates));
    if (held == NULL) {
        return PyErr_NoMemory();
    }
    *held = rates;
    PyObject *capsule = PyCapsule_New(held, "copyspec.Rates", free_rates);
    if (capsule == NULL) {
        PyMem_Free(held);
    }
    return capsule;
}

/* `Record.add` of record `number`, which is to be refreshed. */
static int
add_record(Walk *walk, int64_t number, double probability, int right)
{
    if (number < 0 || number >= walk->records_of) {
        PyErr_Format(PyExc_IndexError, "no record %lld: there are %lld", (long long)number,
                     (long long)walk->records_of);
        return -1;
    }
    double *record = walk->records + number * NUMBERS, decay = walk->rates->decay;
    record[RIGHT] = record[RIGHT] * decay + right;
    record[WRONG] = record[WRONG] * decay + !right;
    record[EXPECTED] = record[EXPECTED] * decay + probability;
    record[DOUBTED] = record[DOUBTED] * decay + 1.0 - probability;
    for (Py_ssize_t i = 0; i < walk->touched.count; i++) {
        if (walk->touched.items[i] == number) {
            return 0;
        }
    }
    return ADD(walk->touched, number);
}

static int
set_weight(PyObject *list, int64_t state, double weight)
{
    PyObject *object = PyFloat_FromDouble(weight);
    return object == NULL ? -1 : PyList_SetItem(list, (Py_ssize_t)state, object); /* which checks the index */
}

/* `Estimates.refresh`. */
static int
refresh(const Walk *walk, int64_t number)
{
    const Rates *rates = walk->rates;
    const int64_t family = number / KINDS_OF_RECORDS, kind = number % KINDS_OF_RECORDS;
    const double *record = walk->records + number * NUMBERS, least = 1.0 / rates->max_factor;
    const double prior = rates->prior_count, wrong = kind == SHORT_AT_ROOT ? prior : rates->prior_count_wrong;
    const double hits = (record[RIGHT] + prior) / (record[EXPECTED] + prior);
    const double misses = (record[WRONG] + wrong) / (record[DOUBTED] + wrong);
    double factor = hits / misses;
    factor = factor > least ? factor : least;
    factor = factor < rates->max_factor ? factor : rates->max_factor;
    const int64_t start = family * rates->stride, border = start + rates->short_length;
    const int64_t stop = kind == LONG ? start + rates->stride : border;
    for (int64_t state = kind == LONG ? border : start; state < stop; state++) {
        double weight;
        if (get_number(walk->priors, (Py_ssize_t)state, &weight) < 0 ||
            (kind != SHORT_DEEPER && set_weight(walk->at_root, state, weight * factor) < 0) ||
            (kind != SHORT_AT_ROOT && set_weight(walk->deeper, state, weight * factor) < 0)) {
            return -1;
        }
    }
    return 0;
}

/* The first child of `node` is in the records, if cursors led to it. */
static int
learn_top(Walk *walk, Py_ssize_t node, Py_ssize_t child, int right)
{
    int64_t after;
    double score, before = 1.0;
    const int found = draft_first_situation(walk->cursors, child, walk->groups, &after);
    if (found <= 0) {
        return found;
    }
    if (get_number(walk->scores, child, &score) < 0 || (node != ROOT && get_number(walk->scores, node, &before) < 0)) {
        return -1;
    }
    const int64_t family = after / walk->rates->stride, length = after % walk->rates->stride;
    const int kind = length > walk->rates->short_length ? LONG : node == ROOT ? SHORT_AT_ROOT : SHORT_DEEPER;
    return add_record(walk, after < 0 || family > TABLE_END ? -1 : family * KINDS_OF_RECORDS + kind, score / before,
                      right);
}

/* The place of a substitute of `token`, or -1: 0, or -1 with an exception. */
static int
find_place(const Walk *walk, PyObject *token, int64_t *place)
{
    *place = -1;
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(walk->substitutes, token));
    if (found == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int result = draft_integer(found, place);
    Py_DECREF(found);
    return result;
}

static int
set_place(const Walk *walk, PyObject *token, int64_t place)
{
    PyObject *object = PyLong_FromLongLong(place);
    int result = object == NULL ? -1 : PyDict_SetItem(walk->substitutes, token, object);
    Py_XDECREF(object);
    return result;
}

/* `learning._learn_substitute` of a child's `token`, of which the substitute stands at `place`, or -1; the output has
 * `kept` there, its token number `taken`. */
static int
learn_substitute(const Walk *walk, Py_ssize_t child, PyObject *token, int64_t place, int right, int likely,
                 Py_ssize_t taken, int64_t kept)
{
    const Rates *rates = walk->rates;
    const int64_t columns = 2 * rates->seen * rates->kept;
    if (right) {
        if (place < 0) {
            return 0;
        }
        if (place % columns / 2 % rates->kept == rates->kept - 1) {
            return PyDict_DelItem(walk->substitutes, token);
        }
        return set_place(walk, token, place + 2);
    }
    const Py_ssize_t end = PyList_GET_SIZE(walk->text);
    if (place >= 0) {
        const Py_ssize_t position = (Py_ssize_t)(place / columns);
        int64_t substitute;
        if (position < end ? get_integer(walk->text, position, &substitute)
                           : get_token(walk->tokens, position - end, &substitute)) {
            return -1;
        }
        if (substitute == kept) {
            const int64_t column = place % columns, seen = column / (2 * rates->kept) + 1;
            return set_place(walk, token,
                             place - column + 2 * rates->kept * (seen < rates->seen ? seen : rates->seen - 1));
        }
    }
    if (likely) {
        int64_t position;
        if (get_integer(walk->positions, child, &position) < 0) {
            return -1;
        }
        if (0 <= position && position < walk->output_start) {
            return set_place(walk, token, (int64_t)(end + taken) * columns);
        }
    }
    return 0;
}

/* One child of `node`: whether it is the output's next token, 1 or 0; -1 with an exception. */
static int
learn_child(Walk *walk, Py_ssize_t node, Py_ssize_t child, int likely, Py_ssize_t taken)
{
    int64_t drafted, kept, place;
    if (get_integer(walk->drafted, child, &drafted) < 0 || get_token(walk->tokens, taken, &kept) < 0) {
        return -1;
    }
    const int right = drafted == kept;
    PyObject *token = PyLong_FromLongLong(drafted);
    int failed = token == NULL || find_place(walk, token, &place) < 0 ||
                 ((place >= 0 || (likely && !right)) &&
                  learn_substitute(walk, child, token, place, right, likely, taken, kept) < 0);
    Py_XDECREF(token);
    if (failed || (likely && learn_top(walk, node, child, right) < 0)) {
        return -1;
    }
    return right;
}

/* `learning.learn`; its results are written to `node` and `taken`. */
static int
follow_path(Walk *walk, Py_ssize_t *node, Py_ssize_t *taken)
{
    int likely = 1;
    for (Py_ssize_t child = 0; child < PyList_GET_SIZE(walk->parents); child++) {
        int64_t parent;
        if (get_integer(walk->parents, child, &parent) < 0) {
            return -1;
        }
        if (parent != *node) {
            continue;
        }
        const int right = learn_child(walk, *node, child, likely, *taken);
        if (right < 0) {
            return -1;
        }
        likely = right;
        if (right) {
            *node = child;
            if (++*taken >= PySequence_Fast_GET_SIZE(walk->tokens)) {
                break;
            }
        }
    }
    for (Py_ssize_t i = 0; i < walk->touched.count; i++) {
        if (refresh(walk, walk->touched.items[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

PyObject *
draft_walk(PyObject *module, PyObject *args)
{
    PyObject *capsule, *records, *tokens;
    Walk walk = {0};
    Py_ssize_t node = ROOT, taken = 0;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "OOO!O!O!O!OO!nO!OO!O!O!", &capsule, &tokens, &PyList_Type,
                          &walk.drafted, &PyList_Type, &walk.parents, &PyList_Type, &walk.scores, &PyList_Type,
                          &walk.positions, &walk.cursors, &PyList_Type, &walk.text, &walk.output_start,
                          &PyDict_Type, &walk.substitutes, &records, &PyList_Type, &walk.priors, &PyList_Type,
                          &walk.at_root, &PyList_Type, &walk.deeper)) {
        return NULL;
    }
    walk.groups = ((State *)PyModule_GetState(module))->groups;
    walk.rates = PyCapsule_GetPointer(capsule, "copyspec.Rates");
    if (walk.rates == NULL || PyObject_GetBuffer(records, &buffer, PyBUF_ND | PyBUF_FORMAT | PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    walk.tokens = PySequence_Fast(tokens, "tokens are a sequence");
    PyObject *result = NULL;
    if (walk.tokens == NULL) {
        ; /* it has an exception */
    } else if (buffer.format == NULL || strcmp(buffer.format, "d") != 0 || (uintptr_t)buffer.buf % sizeof(double) != 0) {
        PyErr_Format(PyExc_ValueError, "records are of format '%s'; arrays of format 'd' are read",
                     buffer.format == NULL ? "B" : buffer.format);
    } else {
        walk.records = buffer.buf;
        walk.records_of = buffer.len / (Py_ssize_t)(NUMBERS * sizeof(double));
        if (follow_path(&walk, &node, &taken) == 0) {
            result = Py_BuildValue("(nn)", node, taken);
        }
    }
    Py_XDECREF(walk.tokens);
    PyBuffer_Release(&buffer);
    PyMem_Free(walk.touched.items);
    return result;
}
