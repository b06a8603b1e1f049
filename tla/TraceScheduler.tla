---------------------------- MODULE TraceScheduler ----------------------------
(* Recorded runs held against Scheduler: one event of a log is one action, with the same answer.

   A batch of traces is a module that extends this one (minisgl_conformance.tla.traces writes it):
     logs == << trace, ... >>   a trace is << header, chunk, chunk, ... >>, a chunk at most 1,000 events
   A header is <<page_size, num_pages, num_rows, max_seq_len, row_width, token_budget, is_naive, is_overlap,
   vocab_size, num_events>>; an event is the tuple that the action leaves in `event`, but that
     <<SUBMIT, uid, ids, max_tokens, stops, sampling_fault, accepted, reason, value, limit>> carries its input,
     <<LAUNCH, batch, phase, requests, tokens>> carries the tokens that its replies will bring.
   The logs are deterministic, so every trace is one path. A trace that has been followed to its end
   prints a witness; nothing but the witness counts.

   Device work is done as it is handed over: what the host decides does not depend on it.
   Chapter: tla/README.md *)
EXTENDS Scheduler, TLC

CONSTANTS
    logs,        \* the traces of this batch
    is_explaining, \* whether to show how far a trace is followed, and what the model answers after `stop_at`
    stop_at,     \* events of the trace to follow in that case
    is_counting_outcomes  \* whether guard outcomes are printed, each once

VARIABLES
    trace,       \* number of the trace
    cursor       \* events that have been followed; one more after the witness

chunk_len == 1000
num_events(t) == logs[t][1][10]
event_at(t, n) == logs[t][2 + ((n - 1) \div chunk_len)][1 + ((n - 1) % chunk_len)]
next_event == event_at(trace, cursor + 1)

config_of(header) ==
    [page_size |-> header[1], num_pages |-> header[2], num_rows |-> header[3], max_seq_len |-> header[4],
     row_width |-> header[5], token_budget |-> header[6], cache |-> IF header[7] = 1 THEN "naive" ELSE "radix",
     is_overlap |-> header[8] = 1, is_late |-> FALSE, vocab_size |-> header[9], outputs |-> {0},
     submissions |-> {}, num_requests |-> 0, is_abortable |-> FALSE, is_resettable |-> FALSE,
     batch_modulus |-> 1000000, is_counting |-> FALSE]

submission_of(e) ==
    [ids |-> e[3], max_tokens |-> e[4], stops |-> range_of(e[5]), sampling_fault |-> e[6]]

(* What the engine answered, in the form of `event`. *)
answer(e) ==
    CASE e[1] = SUBMIT -> <<SUBMIT, e[2], e[7], e[8], e[9], e[10], e[3], e[4]>>
      [] e[1] = LAUNCH -> take(e, 4)
      [] OTHER -> e

(* The action that an event stands for, with the input that the event carries. *)
act(e) ==
    CASE e[1] = SUBMIT -> submit(e[2], submission_of(e))
      [] e[1] = ABORT -> abort(e[2])
      [] e[1] = RESET -> reset
      [] e[1] = BEGIN_STEP -> begin_step
      [] e[1] = END_STEP -> end_step
      [] e[1] = ADMIT -> admit
      [] e[1] = REFUSE -> refuse
      [] e[1] = EVICT -> evict
      [] e[1] = TAKE_PAGES -> take_pages
      [] e[1] = LAUNCH -> can_launch /\ Len(e[5]) = Len(to_launch) /\ launch(e[5])
      [] e[1] = PROCESS -> process
      [] e[1] = INSERT -> insert
      [] e[1] = RELEASE -> release
      [] e[1] = REPLY -> reply_abort \/ reply_token
      [] OTHER -> FALSE

\* -- guard outcomes --------------------------------------------------------------------------
\* Which way each guard went, as a number: 2 * guard, or 2 * guard + 1 if it held something back.

outcome(guard, is_held) == {2 * guard + (IF is_held THEN 1 ELSE 0)}

outcomes(e) ==
    CASE e[1] = SUBMIT ->
            outcome(1, e[8] = DUPLICATE_UID) \union outcome(43, e[8] = DUPLICATE_UID /\ e[2] \notin DOMAIN requests)
            \union outcome(2, e[8] = EMPTY_PROMPT)
            \union outcome(3, e[8] = TOKEN_OUT_OF_RANGE) \union outcome(4, e[8] = MAX_TOKENS_NOT_POSITIVE)
            \union outcome(5, e[8] = BAD_TEMPERATURE) \union outcome(6, e[8] = BAD_TOP_K)
            \union outcome(7, e[8] = BAD_TOP_P) \union outcome(8, e[8] = PROMPT_TOO_LONG)
            \union outcome(9, e[8] = LARGER_THAN_POOL)
            \union (IF e[7] = 1 THEN outcome(10, e[4] > config.max_seq_len - Len(e[3])) ELSE {})
      [] e[1] = ABORT ->
            outcome(11, e[3] = 0) \union
            (IF e[3] = 0 THEN {}
             ELSE outcome(12, requests[e[2]].row = no_row) \union outcome(13, requests[e[2]].batches # << >>)
                  \union outcome(14, requests[e[2]].phase = PREFILL))
      [] e[1] = RESET -> outcome(15, e[2] = 0)
      [] e[1] = BEGIN_STEP ->
            outcome(16, replies # << >>) \union outcome(17, waiting # << >> /\ requests[Head(waiting)].row # no_row)
            \union outcome(39, is_waiting_for_retired)
      [] e[1] \in {ADMIT, REFUSE} ->
            outcome(18, free_rows = << >>)
            \union (IF free_rows = << >> THEN {} ELSE LET f == fit IN
                    outcome(19, f.need > f.before)
                    \union (IF f.need > f.before THEN {} ELSE outcome(20, f.need > f.after))
                    \union (IF e[1] = REFUSE THEN {}
                            ELSE outcome(21, f.prefix_len > 0) \union outcome(22, f.tree.nodes # f.locked.nodes)
                                 \union outcome(23, chunk_end(requests[e[2]], host.budget) < requests[e[2]].prompt_len)
                                 \union outcome(24, reserved_pages > 0)
                                 \union outcome(25, longest(tree.nodes, requests[e[2]].ids, size) > f.prefix_len)))
      [] e[1] = TAKE_PAGES -> outcome(26, Len(to_launch) > 1)
      [] e[1] = EVICT -> outcome(27, \E i \in 1..Len(tree.nodes) : tree.nodes[i].ref_count > 0)
                         \union outcome(28, Len(e[2]) > num_all_to_take - Len(free_pages))
      [] e[1] = LAUNCH ->
            outcome(29, e[3] = DECODE)
            \union outcome(30, \E i \in 1..Len(e[4]) : e[4][i][4] = 0)
            \union outcome(31, in_flight # << >>)
            \union outcome(32, e[3] = DECODE /\ \E uid \in range_of(admitted) : ~can_decode(requests[uid]))
      [] e[1] = PROCESS -> outcome(33, retired # << >>)
      [] e[1] = INSERT ->
            outcome(34, e[5] # << >>)
            \union (IF e[5] = << >> THEN {} ELSE outcome(35, requests[e[2]].batches # << >>))
      [] e[1] = RELEASE -> outcome(36, e[5] > requests[e[2]].handle_len) \union outcome(37, e[6] # << >>)
                           \union outcome(38, requests[e[2]].phase = RETIRED)
      [] e[1] = REPLY ->
            (IF e[4] = ABORTED THEN {} ELSE
             outcome(40, e[4] = STOP) \union outcome(41, e[4] = LENGTH)
             \union (IF e[4] = NOT_YET THEN {} ELSE outcome(42, requests[e[2]].batches # << >>)))
      [] OTHER -> {}

num_guards == 43
ASSUME \A i \in 2..(2 * num_guards + 1) : TLCSet(i, 0)

count_outcomes(e) ==
    is_counting_outcomes =>
        \A i \in outcomes(e) : IF TLCGet(i) = 0 THEN TLCSet(i, 1) /\ PrintT(<<"outcome", i>>) ELSE TRUE

\* -- behaviours ------------------------------------------------------------------------------

TraceInit ==
    /\ trace \in 1..Len(logs)
    /\ cursor = 0
    /\ config = config_of(logs[trace][1])
    /\ InitState

(* The next event of the log, taken by the model with the same answer. *)
follow ==
    /\ cursor < num_events(trace)
    /\ ~(is_explaining /\ cursor = stop_at)
    /\ count_outcomes(next_event)
    /\ act(next_event)
    /\ event' = answer(next_event)
    /\ cursor' = cursor + 1
    /\ is_explaining => PrintT(<<"followed", cursor'>>)
    /\ UNCHANGED trace

(* The whole log has been followed. *)
witness ==
    /\ cursor = num_events(trace)
    /\ PrintT(<<"accepted", trace, cursor>>)
    /\ cursor' = cursor + 1
    /\ UNCHANGED <<trace, vars>>

explained_tokens == [i \in 1..Len(to_launch) |-> 0]

(* Explain mode: every answer that the model has where the log stops. *)
explain ==
    /\ is_explaining /\ cursor = stop_at
    /\ \/ act(next_event)
       \/ begin_step \/ reply_abort \/ admit \/ refuse \/ evict \/ take_pages \/ (can_launch /\ launch(explained_tokens))
       \/ process \/ reply_token \/ insert \/ release \/ end_step
    /\ PrintT(<<"model", event'>>)
    /\ cursor' = -1
    /\ UNCHANGED trace

TraceNext == follow \/ witness \/ explain

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, cursor>>
=============================================================================
