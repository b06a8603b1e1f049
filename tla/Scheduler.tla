------------------------------ MODULE Scheduler ------------------------------
(* The scheduler: rows, admission with reservation in pages, chunked prefill, decode, release, abort at any
   time, the normal and the overlap loop, and a device that works as late as it may.

   One action per inner event of a log (admit, refuse, evict, take, launch, process, insert, release,
   reply), and one for each operation from outside (submit, abort, reset, the begin and the end of a
   step). Between `begin_step` and `end_step` exactly one host action is enabled; beside it, if
   config.is_late, the device runs what it was handed when it likes, in the order of its two streams.

   The model of the language is any function: `launch` chooses the token of every request it samples,
   which the host learns when the batch is processed. Memory that is given back is poisoned at once.

   Left out: the token pool of the device (a batch knows its tokens), numbers of sampling, logits.
   Chapter: spec/04-requests.md, spec/05-prefill-and-chunking.md, spec/06-decode-and-release.md,
   spec/07-overlap.md *)
EXTENDS RadixTree

VARIABLES
    config,      \* see Init; set there, then constant
    host,        \* where the step under way is: [stage, budget (tokens), chosen (uids), is_open, late]
    requests,    \* [uid -> request]: every request that waits or is admitted; see `waiting_request`
    waiting,     \* uids in order of arrival, an unfinished chunk at the head
    admitted,    \* uids in order of admission, until released
    in_flight,   \* batches launched and not processed, oldest first; see `launch`
    processing,  \* what is left to do of the batch being processed: [uid, what, phase]
    given,       \* pages to be given back when it is
    retired,     \* [last (batch), pages]: given up, but a batch in flight may touch them
    replies,     \* [uid, cached_len (tokens)] of aborts, to be delivered by the next step
    tree,        \* the radix tree, see RadixTree
    free_pages,  \* pages, the next one handed out first
    free_rows,   \* rows, the next one handed out last
    num_launched,\* batches, modulo config.batch_modulus
    num_submitted, \* requests accepted so far; bounds the model
    unended,     \* uids accepted and without a terminal reply so far, in order of acceptance
    queue,       \* table writes handed to the scheduler's stream: [row, first (page index), pages]
    device_rows, \* [row -> pages as the device's table maps them]; `nowhere` where poisoned
    content,     \* [page -> the tokens, from position 0 on, whose KV its last written slot ends]
    event        \* the last event, as a tuple of integers; nothing depends on it

host_vars == <<waiting, admitted, in_flight, processing, given, retired, replies>>
pool_vars == <<tree, free_pages, free_rows>>
count_vars == <<num_launched, num_submitted, unended>>
device_vars == <<queue, device_rows, content>>
all_but_event == <<config, host, requests, host_vars, pool_vars, count_vars, device_vars>>
vars == <<all_but_event, event>>

CONSTANTS
    configurations,   \* the set that Init draws from; each model file names its own
    next_token_table  \* [tokens -> the token that follows]; beyond its domain any of config.outputs may

any_token == << >>  \* the empty table

\* Events and their fields.
SUBMIT == 1      \* uid, accepted, reason, value, limit, ids, max_tokens
ABORT == 2       \* uid, accepted
RESET == 3       \* accepted
BEGIN_STEP == 4  \*
END_STEP == 5    \* free_pages, evictable_size, protected_size, num_waiting, num_running
ADMIT == 6       \* uid, row, cached_len, pages
REFUSE == 7      \* uid, why, need, available
EVICT == 8       \* pages
TAKE_PAGES == 9  \* uid, pages
LAUNCH == 10     \* batch, phase, [uid, cached_len, device_len, sampled] of each request
PROCESS == 11    \* batch
INSERT == 12     \* uid, insert_len, prefix_len, duplicates
RELEASE == 13    \* uid, row, insert_len, prefix_len, given_up
REPLY == 14      \* uid, token, finish_reason, cached_len
RUN_WRITE == 15  \* row: the device
RUN_BATCH == 16  \* batch, whether all it read was right: the device

\* Phases of a request, and of a batch (PREFILL, DECODE); minisgl_spec.views.
WAITING == 0
PREFILL == 1
DECODE == 2
RETIRED == 3

\* Reasons of a refusal by submit, in the order in which they are checked.
DUPLICATE_UID == 1
EMPTY_PROMPT == 2
TOKEN_OUT_OF_RANGE == 3
MAX_TOKENS_NOT_POSITIVE == 4
BAD_TEMPERATURE == 5
BAD_TOP_K == 6
BAD_TOP_P == 7
PROMPT_TOO_LONG == 8
LARGER_THAN_POOL == 9

\* Why the head of the line is not admitted; minisgl_spec.admission.
NO_ROW == 1
NO_ROOM == 2
NO_ROOM_AFTER_LOCK == 3

\* finish_reason
NOT_YET == 0
STOP == 1
LENGTH == 2
ABORTED == 3

NO_TOKEN == -1
nowhere == -1
no_row == -1
poison == <<-1>>

size == config.page_size
is_naive == config.cache = "naive"

\* -- requests --------------------------------------------------------------------------------

bit(condition) == IF condition THEN 1 ELSE 0

pages_for(prompt_len, max_tokens) == div_ceil(prompt_len + max_tokens - 1, size)

clamped(ids, max_tokens) ==
    IF mistake = "max_tokens_as_asked" THEN max_tokens ELSE min(max_tokens, config.max_seq_len - Len(ids))

(* requests.accept. `ids` are all tokens that exist, also those a batch in flight is still to deliver:
   the host knows the first known_len of them. Lengths in tokens. *)
waiting_request(submission) ==
    LET max_tokens == clamped(submission.ids, submission.max_tokens) IN
    [phase |-> WAITING, ids |-> submission.ids, known_len |-> Len(submission.ids),
     prompt_len |-> Len(submission.ids), max_tokens |-> max_tokens, stops |-> submission.stops,
     cached_len |-> 0, device_len |-> Len(submission.ids), written_len |-> 0, admitted_len |-> 0,
     row |-> no_row, pages |-> << >>, handle_len |-> 0, is_locked |-> FALSE, batches |-> << >>]

max_device_len(r) == r.prompt_len + r.max_tokens
pages_in_all(r) == pages_for(r.prompt_len, r.max_tokens)
pages_still_needed(r) == pages_in_all(r) - Len(r.pages)
private_pages(r) == drop(r.pages, r.handle_len \div size)
handle_path(r) == take(r.ids, r.handle_len)
output_len(r) == r.known_len - r.prompt_len
can_decode(r) == r.device_len < max_device_len(r) \/ mistake = "decode_past_the_end"

(* admission.reserved_pages: promised to admitted requests and not taken yet. *)
reserved_pages ==
    LET promised == SelectSeq(admitted, LAMBDA uid : requests[uid].phase # RETIRED)
    IN  CASE mistake = "admission_counts_tokens" ->
               sum([i \in 1..Len(promised) |->
                    max_device_len(requests[promised[i]]) - requests[promised[i]].device_len])
          [] mistake = "no_reservation" -> 0
          [] OTHER -> sum([i \in 1..Len(promised) |-> pages_still_needed(requests[promised[i]])])

(* requests.refusal_of and Scheduler.submit: [reason, value, limit], reason 0 if accepted. *)
refusal_of(uid, submission) ==
    LET ids == submission.ids
        outside == {i \in 1..Len(ids) : ids[i] < 0 \/ ids[i] >= config.vocab_size}
        need == pages_for(Len(ids), clamped(ids, submission.max_tokens))
        is_taken == uid \in DOMAIN requests \/ \E i \in 1..Len(replies) : replies[i].uid = uid
    IN  CASE is_taken -> <<DUPLICATE_UID, uid, 0>>
          [] ids = << >> -> <<EMPTY_PROMPT, 0, 1>>
          [] outside # {} -> <<TOKEN_OUT_OF_RANGE, ids[min_of(outside)], config.vocab_size>>
          [] submission.max_tokens < 1 -> <<MAX_TOKENS_NOT_POSITIVE, submission.max_tokens, 1>>
          [] submission.sampling_fault # 0 -> <<submission.sampling_fault, 0, 0>>
          [] Len(ids) >= config.max_seq_len /\ mistake # "no_length_limit" ->
                <<PROMPT_TOO_LONG, Len(ids), config.max_seq_len - 1>>
          [] need > config.num_pages /\ mistake # "no_pool_limit" ->
                <<LARGER_THAN_POOL, need, config.num_pages>>
          [] OTHER -> <<0, 0, 0>>

finish_reason(r, token, num_outputs) ==
    CASE token \in r.stops /\ mistake # "stop_tokens_ignored" -> STOP
      [] num_outputs = r.max_tokens -> LENGTH
      [] OTHER -> NOT_YET

\* -- where a step is -------------------------------------------------------------------------

at_rest == [stage |-> "idle", budget |-> 0, chosen |-> << >>, is_open |-> FALSE, late |-> 0]

is_between_operations == host.stage = "idle" /\ processing = << >>

(* The line has a request that the walk has not passed; it is open in the stage "schedule" only. *)
can_walk ==
    /\ host.is_open /\ host.budget > 0
    /\ Len(host.chosen) < Len(waiting)
head_of_line == waiting[Len(host.chosen) + 1]

decodable == SelectSeq(admitted, LAMBDA uid : requests[uid].phase = DECODE /\ can_decode(requests[uid]))

is_prefill == host.chosen # << >>
to_launch == IF is_prefill THEN host.chosen ELSE decodable
num_to_take(uid) == div_ceil(requests[uid].device_len, size) - Len(requests[uid].pages)
num_all_to_take == sum([i \in 1..Len(to_launch) |-> num_to_take(to_launch[i])])

is_chosen == host.stage = "schedule" /\ ~can_walk /\ to_launch # << >>
is_nothing_chosen == host.stage = "schedule" /\ ~can_walk /\ to_launch = << >>

(* admission.take_chunk *)
chunk_end(r, budget) ==
    IF mistake = "budget_ignored" THEN r.prompt_len ELSE min(r.prompt_len, r.cached_len + budget)

(* Pages promised to admitted requests may be retired (there is no other reason why they could be short): then a
   step launches nothing, and processes the batch in flight that holds them back. *)
is_waiting_for_retired ==
    /\ reserved_pages > Len(free_pages) + tree.evictable_size \div size
    /\ mistake \notin {"retired_pages_not_awaited", "admission_counts_tokens"}

(* What a step begins with, once replies of aborts are out: an unfinished chunk goes first. *)
schedule_stage(line) ==
    IF is_waiting_for_retired THEN [at_rest EXCEPT !.stage = "process"]
    ELSE IF line # << >> /\ requests[Head(line)].row # no_row
    THEN LET r == requests[Head(line)] IN
         [stage |-> "schedule", budget |-> config.token_budget - (chunk_end(r, config.token_budget) - r.cached_len),
          chosen |-> <<Head(line)>>, is_open |-> TRUE, late |-> 0]
    ELSE [stage |-> "schedule", budget |-> config.token_budget, chosen |-> << >>, is_open |-> TRUE, late |-> 0]

begun_requests(line) ==
    IF ~is_waiting_for_retired /\ line # << >> /\ requests[Head(line)].row # no_row
    THEN [requests EXCEPT ![Head(line)].device_len = chunk_end(requests[Head(line)], config.token_budget)]
    ELSE requests

\* -- the device ------------------------------------------------------------------------------

num_row_pages == config.row_width \div size

written_row(row_pages, write) ==
    [i \in 1..Len(row_pages) |->
        IF write.first < i /\ i <= write.first + Len(write.pages) THEN write.pages[i - write.first]
                                                                  ELSE row_pages[i]]

poisoned_row == [i \in 1..num_row_pages |-> nowhere]

(* Engine.write_pages: hand a table write to the scheduler's stream; without late work it is done at once. *)
hand_over(write) ==
    IF write.pages = << >> THEN UNCHANGED <<queue, device_rows>>
    ELSE IF config.is_late THEN queue' = Append(queue, write) /\ UNCHANGED device_rows
    ELSE UNCHANGED queue /\ device_rows' = [device_rows EXCEPT ![write.row] = written_row(@, write)]

page_at(rows, row, i) == IF i <= Len(rows[row]) THEN rows[row][i] ELSE nowhere

(* Whether every position an entry reads holds exactly the tokens of its request up to there. *)
reads_its_prefix(rows, memory, entry) ==
    \A i \in 1..div_ceil(entry.cached_len, size) :
        LET page == page_at(rows, entry.row, i)
            upto == take(entry.ids, min(entry.cached_len, i * size))
        IN  page # nowhere /\ is_prefix(upto, memory[page])

(* Engine._run for one request of a batch: what the pages hold afterwards. *)
written_content(rows, memory, entry) ==
    LET is_right == reads_its_prefix(rows, memory, entry)
        indexes == (entry.cached_len \div size + 1)..div_ceil(entry.device_len, size)
        index_of(page) == {i \in indexes : page_at(rows, entry.row, i) = page}
        upto(i) == IF is_right THEN take(entry.ids, min(entry.device_len, i * size)) ELSE poison
    IN  [page \in DOMAIN memory |-> IF index_of(page) = {} THEN memory[page] ELSE upto(max_of(index_of(page)))]

RECURSIVE run_entries(_, _, _)
run_entries(rows, memory, entries) ==
    IF entries = << >> THEN memory
    ELSE run_entries(rows, written_content(rows, memory, Head(entries)), Tail(entries))

is_all_right(rows, memory, entries) == \A i \in 1..Len(entries) : reads_its_prefix(rows, memory, entries[i])

poisoned(memory, pages) == [page \in DOMAIN memory |-> IF page \in range_of(pages) THEN << >> ELSE memory[page]]

(* SimulatedStreams: the next table write of the scheduler's stream. *)
run_write ==
    /\ queue # << >>
    /\ device_rows' = [device_rows EXCEPT ![Head(queue).row] = written_row(@, Head(queue))]
    /\ queue' = Tail(queue)
    /\ in_flight' = [i \in 1..Len(in_flight) |-> [in_flight[i] EXCEPT !.waits_for = max(0, @ - 1)]]
    /\ event' = <<RUN_WRITE, Head(queue).row>>
    /\ UNCHANGED <<config, host, requests, waiting, admitted, processing, given, retired, replies, pool_vars,
                   count_vars, content>>

(* SimulatedStreams: the next batch of the engine's stream, once the writes before its launch are done. *)
run_batch ==
    LET to_run == {i \in 1..Len(in_flight) : ~in_flight[i].has_run}
        i == min_of(to_run)
        batch == in_flight[i]
    IN  /\ to_run # {}
        /\ batch.waits_for = 0 \/ mistake = "batch_before_its_table"
        /\ content' = run_entries(device_rows, content, batch.entries)
        /\ in_flight' = [in_flight EXCEPT ![i].has_run = TRUE]
        /\ event' = <<RUN_BATCH, batch.number, bit(is_all_right(device_rows, content, batch.entries))>>
        /\ UNCHANGED <<config, host, requests, waiting, admitted, processing, given, retired, replies, pool_vars,
                       count_vars, queue, device_rows>>

\* -- giving back -----------------------------------------------------------------------------

(* Scheduler._give_pages, at the end of a process or an abort. *)
give_when_done(rest, pages) ==
    IF rest = << >>
    THEN free_pages' = free_pages \o pages /\ given' = << >> /\ content' = poisoned(content, pages)
    ELSE given' = pages /\ UNCHANGED <<free_pages, content>>

\* -- operations from outside -----------------------------------------------------------------

(* Scheduler.submit *)
submit(uid, submission) ==
    LET refusal == refusal_of(uid, submission)
        is_accepted == refusal[1] = 0
    IN  /\ is_between_operations
        /\ event' = <<SUBMIT, uid, bit(is_accepted), refusal[1], refusal[2], refusal[3], submission.ids,
                      submission.max_tokens>>
        /\ IF is_accepted
           THEN /\ requests' = [u \in DOMAIN requests \union {uid} |->
                                IF u = uid THEN waiting_request(submission) ELSE requests[u]]
                /\ waiting' = Append(waiting, uid)
                /\ num_submitted' = IF config.is_counting THEN num_submitted + 1 ELSE 0
                /\ unended' = Append(unended, uid)
           ELSE UNCHANGED <<requests, waiting, num_submitted, unended>>
        /\ UNCHANGED <<config, host, admitted, in_flight, processing, given, retired, replies, pool_vars,
                       num_launched, device_vars>>

without(s, x) == SelectSeq(s, LAMBDA y : y # x)

(* The mistakes of deviations 2 and 3: an abort releases what a batch in flight holds. *)
is_released_early(r) ==
    \/ mistake = "release_in_flight"
    \/ mistake = "abort_in_final_prefill" /\ r.phase = DECODE /\ output_len(r) = 0
    \/ mistake = "abort_as_decode_finishes" /\ r.phase = DECODE /\ output_len(r) > 0

(* Scheduler.abort: a request that waits is forgotten, one that is in flight is marked, any other released. *)
abort(uid) ==
    LET is_known == uid \in DOMAIN requests /\ requests[uid].phase # RETIRED
        r == requests[uid]
        is_held == r.batches # << >> /\ ~is_released_early(r)
    IN  /\ is_between_operations
        /\ event' = <<ABORT, uid, bit(is_known)>>
        /\ IF ~is_known
           THEN UNCHANGED <<requests, waiting, replies, processing>>
           ELSE /\ replies' = Append(replies, [uid |-> uid, cached_len |-> r.admitted_len])
                /\ waiting' = IF mistake = "abort_leaves_the_line" THEN waiting ELSE without(waiting, uid)
                /\ CASE r.row = no_row ->
                          /\ requests' = IF mistake = "abort_leaves_the_line" THEN requests
                                         ELSE [u \in DOMAIN requests \ {uid} |-> requests[u]]
                          /\ UNCHANGED processing
                     [] r.row # no_row /\ is_held ->
                          /\ requests' = [requests EXCEPT ![uid].phase = RETIRED]
                          /\ UNCHANGED processing
                     [] OTHER ->
                          /\ processing' = <<[uid |-> uid, what |-> RELEASE, phase |-> DECODE, token |-> NO_TOKEN]>>
                          /\ UNCHANGED requests
        /\ UNCHANGED <<config, host, admitted, in_flight, given, retired, pool_vars, count_vars, device_vars>>

(* Scheduler.reset: refused while a handle is locked. *)
reset ==
    LET is_refused == admitted # << >> /\ mistake # "reset_while_locked"
    IN  /\ is_between_operations
        /\ event' = <<RESET, bit(~is_refused)>>
        /\ IF is_refused THEN UNCHANGED <<tree, free_pages, content>>
           ELSE /\ tree' = empty_tree
                /\ free_pages' = [i \in 1..config.num_pages |-> i - 1]
                /\ content' = poisoned(content, cached_pages(tree))
        /\ UNCHANGED <<config, host, requests, host_vars, free_rows, count_vars, queue, device_rows>>

\* -- one step --------------------------------------------------------------------------------

(* Scheduler.step *)
begin_step ==
    /\ is_between_operations
    /\ event' = <<BEGIN_STEP>>
    /\ IF replies # << >>
       THEN host' = [at_rest EXCEPT !.stage = "replies"] /\ UNCHANGED requests
       ELSE host' = schedule_stage(waiting) /\ requests' = begun_requests(waiting)
    /\ UNCHANGED <<config, host_vars, pool_vars, count_vars, device_vars>>

remove_first(s, x) ==
    LET at == {i \in 1..Len(s) : s[i] = x}
    IN  IF at = {} THEN s ELSE take(s, min_of(at) - 1) \o drop(s, min_of(at))

(* Scheduler._run_once: the terminal replies of aborts. *)
reply_abort ==
    LET reply == Head(replies)
        rest == Tail(replies)
    IN  /\ host.stage = "replies"
        /\ event' = <<REPLY, reply.uid, NO_TOKEN, ABORTED, reply.cached_len>>
        /\ replies' = rest
        /\ unended' = remove_first(unended, reply.uid)
        /\ IF rest # << >> THEN UNCHANGED <<host, requests>>
           ELSE host' = schedule_stage(waiting) /\ requests' = begun_requests(waiting)
        /\ UNCHANGED <<config, waiting, admitted, in_flight, processing, given, retired, pool_vars,
                       num_launched, num_submitted, device_vars>>

(* What admission finds for the head of the line: [tree, prefix_len, locked, need, before, after]; in pages
   but prefix_len. `before` and `after` are what is available before and after its prefix is locked. *)
fit ==
    LET r == requests[head_of_line]
        ids == IF mistake = "match_the_last_token" THEN take(r.ids, r.prompt_len) ELSE take(r.ids, r.prompt_len - 1)
        found == match_prefix(tree, ids, size)
        path == take(ids, found.prefix_len)
        locked == IF mistake = "no_lock" THEN found.tree ELSE lock(found.tree, path, size)
        available(t) == Len(free_pages) + t.evictable_size \div size
        all == IF mistake = "admission_counts_tokens" THEN max_device_len(r) - found.prefix_len
               ELSE pages_in_all(r) - found.prefix_len \div size
        scale == IF mistake = "admission_counts_tokens" THEN size ELSE 1
    IN  [tree |-> found.tree, prefix_len |-> found.prefix_len, locked |-> locked,
         need |-> all + reserved_pages, before |-> scale * available(found.tree),
         after |-> scale * available(locked)]

why_not(f) ==
    CASE free_rows = << >> -> NO_ROW
      [] f.need > f.before /\ mistake # "no_room_check_before_lock" -> NO_ROOM
      [] f.need > f.after /\ mistake # "no_room_check_after_lock" -> NO_ROOM_AFTER_LOCK
      [] OTHER -> 0

(* admission.try_admit, and take_chunk. *)
admit ==
    LET uid == head_of_line
        r == requests[uid]
        f == fit
        row == free_rows[Len(free_rows)]
        path == take(r.ids, f.prefix_len)
        pages == pages_of(f.locked, path)
        begun == [r EXCEPT !.phase = PREFILL, !.row = row, !.pages = pages, !.handle_len = f.prefix_len,
                           !.is_locked = (mistake # "no_lock"), !.admitted_len = f.prefix_len,
                           !.cached_len = f.prefix_len, !.written_len = f.prefix_len]
        end == chunk_end(begun, host.budget)
    IN  /\ can_walk
        /\ why_not(f) = 0
        /\ tree' = f.locked
        /\ free_rows' = take(free_rows, Len(free_rows) - 1)
        /\ requests' = [requests EXCEPT ![uid] = [begun EXCEPT !.device_len = end]]
        /\ admitted' = Append(admitted, uid)
        /\ host' = [host EXCEPT !.budget = max(0, @ - (end - f.prefix_len)), !.chosen = Append(@, uid)]
        /\ hand_over([row |-> row, first |-> 0, pages |-> pages])
        /\ event' = <<ADMIT, uid, row, f.prefix_len, pages>>
        /\ UNCHANGED <<config, waiting, in_flight, processing, given, retired, replies, free_pages,
                       count_vars, content>>

(* admission.try_admit: the head of the line waits on, and so does everybody behind it. *)
refuse ==
    LET f == fit
        why == why_not(f)
    IN  /\ can_walk
        /\ why # 0
        /\ tree' = IF why = NO_ROW THEN tree ELSE f.tree
        /\ host' = [host EXCEPT !.is_open = FALSE]
        /\ event' = <<REFUSE, head_of_line, why, IF why = NO_ROW THEN 1 ELSE f.need,
                      CASE why = NO_ROW -> 0 [] why = NO_ROOM -> f.before [] OTHER -> f.after>>
        /\ UNCHANGED <<config, requests, host_vars, free_pages, free_rows, count_vars, device_vars>>

(* PrefixCache.allocate: what the free list is short of. *)
evict ==
    LET short == num_all_to_take - Len(free_pages)
        result == evict_leaves(tree, short, size, << >>)
    IN  /\ is_chosen
        /\ short > 0
        /\ tree' = result.tree
        /\ free_pages' = free_pages \o result.pages
        /\ content' = poisoned(content, result.pages)
        /\ event' = <<EVICT, result.pages>>
        /\ UNCHANGED <<config, host, requests, host_vars, free_rows, count_vars, queue, device_rows>>

(* Scheduler._allocate, for the first request of the batch that lacks pages. *)
take_pages ==
    LET lacking == {i \in 1..Len(to_launch) : num_to_take(to_launch[i]) > 0}
        uid == to_launch[min_of(lacking)]
        r == requests[uid]
        pages == take(free_pages, num_to_take(uid))
    IN  /\ is_chosen
        /\ lacking # {}
        /\ num_all_to_take <= Len(free_pages)
        /\ free_pages' = drop(free_pages, Len(pages))
        /\ requests' = [requests EXCEPT ![uid].pages = @ \o pages]
        /\ hand_over([row |-> r.row, first |-> Len(r.pages), pages |-> pages])
        /\ event' = <<TAKE_PAGES, uid, pages>>
        /\ UNCHANGED <<config, host, host_vars, tree, free_rows, count_vars, content>>

is_sampled(r) == r.device_len >= r.prompt_len \/ mistake = "chunks_are_sampled"

(* The tokens that the model may choose for a request of the batch: one if nobody will look at it. *)
permitted_tokens(uid) ==
    LET r == requests[uid]
        ids == take(r.ids, r.device_len)
    IN  IF ids \in DOMAIN next_token_table THEN {next_token_table[ids]}
        ELSE IF is_sampled(r) /\ Len(r.ids) - r.prompt_len + 1 < r.max_tokens THEN config.outputs
        ELSE {CHOOSE token \in config.outputs : TRUE}

can_launch == is_chosen /\ num_all_to_take = 0

(* Scheduler._launch and Engine.launch, where it can; tokens: what the model chooses for each request of the batch. *)
launch(tokens) ==
    LET entry(i) ==
            LET r == requests[to_launch[i]] IN
            [uid |-> to_launch[i], row |-> r.row, cached_len |-> r.cached_len, device_len |-> r.device_len,
             sampled |-> is_sampled(r), ids |-> take(r.ids, r.device_len),
             token |-> IF r.cached_len < r.device_len THEN tokens[i] ELSE NO_TOKEN,  \* nothing computed, no logits
             out_pages |-> SubSeq(r.pages, r.cached_len \div size + 1, div_ceil(r.device_len, size))]
        entries == [i \in 1..Len(to_launch) |-> entry(i)]
        number == (num_launched + 1) % config.batch_modulus
        phase == IF is_prefill THEN PREFILL ELSE DECODE
        moved(i) ==
            LET r == requests[to_launch[i]] IN
            [r EXCEPT !.phase = IF entries[i].sampled THEN DECODE ELSE PREFILL,
                      !.cached_len = r.device_len, !.device_len = r.device_len + 1,
                      !.batches = Append(@, number),
                      !.ids = IF entries[i].sampled THEN Append(@, entries[i].token) ELSE @]
        place(uid) == min_of({i \in 1..Len(to_launch) : to_launch[i] = uid})
        unfinished == SelectSeq(host.chosen, LAMBDA uid : requests[uid].device_len < requests[uid].prompt_len)
    IN  /\ num_launched' = number
        /\ requests' = [uid \in DOMAIN requests |->
                            IF uid \in range_of(to_launch) THEN moved(place(uid)) ELSE requests[uid]]
        /\ waiting' = (IF mistake = "chunk_leaves_the_line" THEN << >> ELSE unfinished)
                      \o drop(waiting, Len(host.chosen))
        /\ in_flight' = Append(in_flight, [number |-> number, phase |-> phase, entries |-> entries,
                                           has_run |-> ~config.is_late, waits_for |-> Len(queue)])
        /\ content' = IF config.is_late THEN content ELSE run_entries(device_rows, content, entries)
        /\ host' = [at_rest EXCEPT !.stage = "process", !.late = bit(config.is_overlap)]
        /\ event' = <<LAUNCH, number, phase, [i \in 1..Len(entries) |->
                      <<entries[i].uid, entries[i].cached_len, entries[i].device_len, bit(entries[i].sampled)>>]>>
        /\ UNCHANGED <<config, admitted, processing, given, retired, replies, pool_vars, num_submitted,
                       unended, queue, device_rows>>

(* While a batch is being processed no other is due: at most two are in flight, and then one of them may be late. *)
is_processing_due ==
    \/ host.stage = "process" /\ Len(in_flight) > host.late
    \/ is_nothing_chosen /\ in_flight # << >>

(* What is to be done for an entry of the batch being processed: nothing, a release, or a reply first. *)
what_to_do(entry, r) ==
    CASE r.phase = RETIRED /\ mistake = "reply_after_the_end" /\ entry.sampled -> REPLY
      [] r.phase = RETIRED -> IF r.batches = << >> THEN RELEASE ELSE 0
      [] OTHER -> IF entry.sampled THEN REPLY ELSE 0

(* Scheduler._process: the host has the result; retired pages that only this batch could touch come back. *)
process ==
    LET batch == Head(in_flight)
        rest == Tail(in_flight)
        without_batch(s) == SelectSeq(s, LAMBDA n : n # batch.number)
        place(uid) == {i \in 1..Len(batch.entries) : batch.entries[i].uid = uid}
        known == [uid \in DOMAIN requests |->
                    IF place(uid) = {} THEN requests[uid]
                    ELSE [requests[uid] EXCEPT !.batches = without_batch(@),
                                               !.written_len = batch.entries[min_of(place(uid))].device_len]]
        held == SelectSeq(batch.entries, LAMBDA e : e.uid \in DOMAIN known)
        tasks == [i \in 1..Len(held) |->
                    [uid |-> held[i].uid, what |-> what_to_do(held[i], known[held[i].uid]),
                     phase |-> batch.phase, token |-> held[i].token]]
        due == SelectSeq(tasks, LAMBDA task : task.what # 0)
        is_back(entry) == \A i \in 1..Len(rest) : rest[i].number # entry.last
        back == SelectSeq(retired, is_back)
        pages == flatten([i \in 1..Len(back) |-> back[i].pages])
    IN  /\ is_processing_due
        /\ batch.has_run \/ mistake = "host_does_not_wait"
        /\ in_flight' = rest
        /\ requests' = known
        /\ processing' = due
        /\ retired' = SelectSeq(retired, LAMBDA entry : ~is_back(entry))
        /\ give_when_done(due, pages)
        /\ host' = IF host.stage = "process" THEN host ELSE [at_rest EXCEPT !.stage = "process"]
        /\ event' = <<PROCESS, batch.number>>
        /\ UNCHANGED <<config, waiting, admitted, replies, tree, free_rows, count_vars, queue, device_rows>>

task == Head(processing)
is_due(what) == processing # << >> /\ task.what = what

(* Scheduler._append_token: the request ends, caches its prompt, or goes on. *)
reply_token ==
    LET uid == task.uid
        r == requests[uid]
        num_outputs == IF mistake = "end_from_the_next_step" THEN r.device_len - r.prompt_len
                       ELSE output_len(r) + 1
        reason == IF r.phase = RETIRED THEN NOT_YET ELSE finish_reason(r, task.token, num_outputs)
        is_held == r.batches # << >> /\ mistake # "release_in_flight"
        next == CASE r.phase = RETIRED -> IF r.batches = << >> THEN RELEASE ELSE 0
                  [] reason # NOT_YET -> IF is_held THEN 0 ELSE RELEASE
                  [] OTHER -> IF task.phase = PREFILL THEN INSERT ELSE 0
        rest == IF next = 0 THEN Tail(processing) ELSE <<[task EXCEPT !.what = next]>> \o Tail(processing)
    IN  /\ is_due(REPLY)
        /\ requests' = [requests EXCEPT ![uid].known_len = @ + 1,
                                        ![uid].phase = IF reason # NOT_YET /\ next = 0 THEN RETIRED ELSE @]
        /\ processing' = rest
        /\ give_when_done(rest, given)
        /\ unended' = IF reason = NOT_YET THEN unended ELSE remove_first(unended, uid)
        /\ event' = <<REPLY, uid, task.token, reason, r.admitted_len>>
        /\ UNCHANGED <<config, host, waiting, admitted, in_flight, retired, replies, tree, free_rows,
                       num_launched, num_submitted, queue, device_rows>>

naive_result == [tree |-> tree, prefix_len |-> 0, new_len |-> 0]
inserted(r, length) ==
    IF is_naive THEN naive_result ELSE insert_prefix(tree, take(r.ids, length), r.pages, size)

(* Scheduler._cache_unfinished: cache a computed prompt, and point the row at the tree. *)
insert ==
    LET uid == task.uid
        r == requests[uid]
        length == IF mistake = "insert_what_is_not_written" THEN min(r.cached_len, Len(r.ids)) ELSE r.written_len
        result == inserted(r, length)
        path == take(r.ids, result.new_len)
        locked == lock(result.tree, path, size)
        tree_pages == pages_of(locked, path)
        first == r.handle_len \div size
        duplicates == SubSeq(r.pages, first + 1, result.prefix_len \div size)
        is_retired == duplicates # << >> /\ r.batches # << >> /\ mistake # "duplicates_are_not_retired"
        back == given \o (IF is_retired THEN << >> ELSE duplicates)
        rest == Tail(processing)
        is_rewritten == mistake # "no_row_rewrite"
    IN  /\ is_due(INSERT)
        /\ tree' = IF mistake = "old_handle_stays_locked" THEN locked
                   ELSE unlock(locked, handle_path(r), size)
        /\ requests' = [requests EXCEPT
                            ![uid].pages = IF is_rewritten THEN tree_pages \o drop(@, Len(tree_pages)) ELSE @,
                            ![uid].handle_len = result.new_len]
        /\ hand_over([row |-> r.row, first |-> first,
                      pages |-> IF is_rewritten THEN SubSeq(tree_pages, first + 1, result.prefix_len \div size)
                                ELSE << >>])
        /\ retired' = IF is_retired
                      THEN Append(retired, [last |-> r.batches[Len(r.batches)], pages |-> duplicates])
                      ELSE retired
        /\ processing' = rest
        /\ give_when_done(rest, back)
        /\ event' = <<INSERT, uid, result.new_len, result.prefix_len, duplicates>>
        /\ UNCHANGED <<config, host, waiting, admitted, in_flight, replies, free_rows, count_vars>>

(* Scheduler._release: give back everything a request holds, caching what was computed. *)
release ==
    LET uid == task.uid
        r == requests[uid]
        result == inserted(r, r.written_len)
        duplicates == SubSeq(r.pages, r.handle_len \div size + 1, result.prefix_len \div size)
        tail == drop(r.pages, (IF mistake = "give_what_is_cached" THEN result.prefix_len ELSE result.new_len) \div size)
        given_up == CASE mistake = "keep_duplicates" -> tail
                      [] mistake = "keep_the_tail" -> duplicates
                      [] OTHER -> duplicates \o tail
        rest == Tail(processing)
    IN  /\ is_due(RELEASE)
        /\ tree' = IF mistake = "no_unlock" THEN result.tree ELSE unlock(result.tree, handle_path(r), size)
        /\ free_rows' = IF mistake = "keep_the_row" THEN free_rows ELSE Append(free_rows, r.row)
        /\ requests' = [u \in DOMAIN requests \ {uid} |-> requests[u]]
        /\ admitted' = without(admitted, uid)
        /\ device_rows' = [device_rows EXCEPT ![r.row] = poisoned_row]
        /\ processing' = rest
        /\ give_when_done(rest, given \o given_up)
        /\ event' = <<RELEASE, uid, r.row, result.new_len, result.prefix_len, given_up>>
        /\ UNCHANGED <<config, host, waiting, in_flight, retired, replies, count_vars, queue>>

(* The step is over. *)
end_step ==
    LET num_waiting == Cardinality({uid \in DOMAIN requests : requests[uid].row = no_row})
    IN  /\ processing = << >>
        /\ \/ host.stage = "process" /\ Len(in_flight) <= host.late
           \/ is_nothing_chosen /\ in_flight = << >>
        /\ host' = at_rest
        /\ event' = <<END_STEP, Len(free_pages), tree.evictable_size, tree.protected_size, num_waiting,
                      Len(admitted)>>
        /\ UNCHANGED <<config, requests, host_vars, pool_vars, count_vars, device_vars>>

\* -- behaviours ------------------------------------------------------------------------------

(* config: page_size, row_width, max_seq_len in slots or tokens; token_budget in tokens; cache "radix" or
   "naive"; outputs: tokens the model may choose; submissions: what may be asked for, each
   [ids, max_tokens, stops, sampling_fault]; uids: 1..n; is_late: the device may lag; is_abortable and
   is_resettable: whether abort and reset occur; batch_modulus: batch numbers are counted modulo it. *)
InitState ==
    /\ host = at_rest
    /\ requests = [uid \in {} |-> << >>]
    /\ waiting = << >> /\ admitted = << >> /\ in_flight = << >>
    /\ processing = << >> /\ given = << >> /\ retired = << >> /\ replies = << >>
    /\ tree = empty_tree
    /\ free_pages = [i \in 1..config.num_pages |-> i - 1]
    /\ free_rows = [i \in 1..config.num_rows |-> i - 1]
    /\ num_launched = 0 /\ num_submitted = 0 /\ unended = << >>
    /\ queue = << >>
    /\ device_rows = [row \in 0..(config.num_rows - 1) |-> poisoned_row]
    /\ content = [page \in 0..(config.num_pages - 1) |-> << >>]
    /\ event = << >>

Init == config \in configurations /\ InitState

submit_any ==
    /\ num_submitted < config.num_requests
    /\ \E submission \in config.submissions : submit(num_submitted + 1, submission)
abort_any == config.is_abortable /\ \E uid \in DOMAIN requests : abort(uid)
reset_any == config.is_resettable /\ reset
launch_any ==
    /\ can_launch
    /\ \E tokens \in [1..Len(to_launch) -> UNION {permitted_tokens(uid) : uid \in range_of(to_launch)}] :
        /\ \A i \in 1..Len(to_launch) : tokens[i] \in permitted_tokens(to_launch[i])
        /\ launch(tokens)

HostNext ==
    \/ begin_step \/ reply_abort \/ admit \/ refuse \/ evict \/ take_pages \/ launch_any
    \/ process \/ reply_token \/ insert \/ release \/ end_step

DeviceNext == run_write \/ run_batch

Next == submit_any \/ abort_any \/ reset_any \/ HostNext \/ DeviceNext

Spec == Init /\ [][Next]_vars

(* Weak fairness of host and device together. One of them is enabled in every state (TLC checks that there is
   no deadlock), so it comes to this: they move again and again. *)
FairSpec == Spec /\ []<><<event'[1] >= BEGIN_STEP>>_vars

\* -- invariants ------------------------------------------------------------------------------

uids_admitted == {uid \in DOMAIN requests : requests[uid].phase # WAITING}
locked_paths ==
    LET locked == SelectSeq(admitted, LAMBDA uid : requests[uid].is_locked)
    IN  [i \in 1..Len(locked) |-> handle_path(requests[locked[i]])]

(* The shapes of the variables. *)
TypeOK ==
    /\ host.stage \in {"idle", "replies", "schedule", "process"}
    /\ host.budget \in 0..config.token_budget
    /\ Len(in_flight) <= 2
    /\ \A uid \in DOMAIN requests : requests[uid].phase \in {WAITING, PREFILL, DECODE, RETIRED}
    /\ range_of(waiting) \subseteq DOMAIN requests /\ range_of(admitted) \subseteq DOMAIN requests
    /\ range_of(free_pages) \subseteq 0..(config.num_pages - 1)

(* Every node but the root holds a positive whole number of pages. *)
keys_page_aligned == is_between_operations => is_keys_page_aligned(tree, size)

(* Two children of one node never begin with the same page of tokens. *)
siblings_differ_in_first_page == is_between_operations => is_siblings_differ_in_first_page(tree, size)

(* A node's ref_count is the number of locked handles at or below it. *)
ref_count_counts_handles == is_between_operations => is_ref_count_counts_handles(tree, locked_paths)

(* The node of every locked handle is in the tree, and its path is as long as the handle says. *)
locked_nodes_in_tree == is_between_operations => is_locked_nodes_in_tree(tree, locked_paths, size)

(* evictable_size and protected_size are the slots under ref_count 0 and above 0. *)
sizes_match_locks == is_between_operations => is_sizes_match_locks(tree, size)

(* No slot is cached by two nodes, or twice by one. *)
slots_cached_once == is_between_operations => is_slots_cached_once(tree)

all_private_pages == flatten([i \in 1..Len(admitted) |-> private_pages(requests[admitted[i]])])
retired_pages == flatten([i \in 1..Len(retired) |-> retired[i].pages])

(* Every page is free, cached by one node, private to one request, or retired: exactly one of these. *)
pages_partitioned ==
    LET owned == free_pages \o cached_pages(tree) \o all_private_pages \o retired_pages
    IN  is_between_operations => Len(owned) = config.num_pages /\ range_of(owned) = 0..(config.num_pages - 1)

(* Every row is free, held by exactly one request, or retired. *)
rows_partitioned ==
    LET owned == free_rows \o [i \in 1..Len(admitted) |-> requests[admitted[i]].row]
    IN  is_between_operations => Len(owned) = config.num_rows /\ range_of(owned) = 0..(config.num_rows - 1)

(* A batch in flight touches only rows and pages that nobody else was given. *)
in_flight_requests_are_held ==
    is_between_operations => \A i \in 1..Len(in_flight) : \A k \in 1..Len(in_flight[i].entries) :
        LET entry == in_flight[i].entries[k]
        IN  /\ entry.uid \in DOMAIN requests /\ requests[entry.uid].row = entry.row
            /\ range_of(entry.out_pages) \intersect range_of(free_pages) = {}

(* Between steps, 0 <= cached_len < device_len <= max_device_len, and so for every launched request. *)
lengths_ordered ==
    is_between_operations =>
        /\ \A uid \in DOMAIN requests :
            LET r == requests[uid]
            IN  r.phase # RETIRED =>
                    0 <= r.cached_len /\ r.cached_len < r.device_len /\ r.device_len <= max_device_len(r)
        /\ \A i \in 1..Len(in_flight) : \A k \in 1..Len(in_flight[i].entries) :
            in_flight[i].entries[k].cached_len < in_flight[i].entries[k].device_len

(* A row is a whole number of pages wide, and every position a request is mapped to is inside its row. *)
rows_are_wide_enough ==
    /\ config.row_width % size = 0
    /\ is_between_operations => \A uid \in DOMAIN requests : Len(requests[uid].pages) * size <= config.row_width

(* The handle of every admitted request is locked. *)
handle_is_locked == is_between_operations => \A uid \in uids_admitted : requests[uid].is_locked

(* Below the length of its handle, a request's row lists the slots of the handle's path. *)
page_table_follows_handle ==
    is_between_operations => \A uid \in uids_admitted :
        LET r == requests[uid]
        IN  has_node(tree, handle_path(r)) =>
                take(r.pages, r.handle_len \div size) = pages_of(tree, handle_path(r))

(* No position below cached_len of an admitted request is on a free page. *)
page_table_reads_live_pages ==
    is_between_operations => \A uid \in DOMAIN requests :
        LET r == requests[uid]
        IN  range_of(take(r.pages, div_ceil(r.cached_len, size))) \intersect range_of(free_pages) = {}

(* Every slot in out_loc but the dummy's is on a page private to the request that writes it. *)
writes_are_private ==
    is_between_operations => \A i \in 1..Len(in_flight) : \A k \in 1..Len(in_flight[i].entries) :
        LET entry == in_flight[i].entries[k]
        IN  /\ entry.uid \in DOMAIN requests
            /\ range_of(entry.out_pages) \subseteq range_of(private_pages(requests[entry.uid]))

(* The slots admitted requests may still need never exceed available_size and the retired slots. *)
admitted_requests_fit ==
    LET promised == SelectSeq(admitted, LAMBDA uid : requests[uid].phase # RETIRED)
        needed == sum([i \in 1..Len(promised) |-> pages_still_needed(requests[promised[i]])])
    IN  is_between_operations =>
            needed * size <= (Len(free_pages) + Len(retired_pages)) * size + tree.evictable_size

(* A request's row maps whole pages, at least the ones below cached_len and at most those it may need. *)
mapped_pages_cover_lengths ==
    is_between_operations => \A uid \in uids_admitted :
        LET r == requests[uid]
        IN      div_ceil(r.cached_len, size) <= Len(r.pages) /\ Len(r.pages) <= pages_in_all(r)

(* Every cached or admitted slot holds the KV of the token prefix that names it. *)
slots_hold_their_tokens ==
    is_between_operations =>
        /\ \A pair \in cached_pairs(tree, size) : content[pair[2]] = pair[1]
        /\ \A uid \in uids_admitted :
            LET r == requests[uid]
            IN  \A i \in 1..div_ceil(r.written_len, size) :
                    is_prefix(take(r.ids, min(r.written_len, i * size)), content[r.pages[i]])

(* An idle engine holds no request, no lock and no row; every page is free or cached. *)
nothing_left_at_idle ==
    is_between_operations /\ DOMAIN requests = {} /\ in_flight = << >> =>
        /\ tree.protected_size = 0 /\ retired = << >>
        /\ Len(free_pages) + tree.evictable_size \div size = config.num_pages
        /\ Len(free_rows) = config.num_rows

\* -- contracts: of every step ----------------------------------------------------------------

is_event(kind) == event'[1] = kind

(* The row and pages of a request are given back exactly once. *)
released_once == [][is_event(RELEASE) => event'[2] \in range_of(admitted)]_vars

(* Every submitted request gets exactly one terminal reply, and nothing after it. *)
replied_once ==
    [][is_event(REPLY) =>
        /\ event'[2] \in range_of(unended)
        /\ event'[4] # NOT_YET => event'[2] \notin range_of(unended')
        /\ event'[4] # ABORTED => \A i \in 1..Len(replies) : replies[i].uid # event'[2]]_vars

(* Every token is the one the model generates after the prompt and the outputs so far. *)
tokens_are_the_models ==
    [][is_event(REPLY) /\ event'[4] # ABORTED =>
        LET r == requests[event'[2]]
        IN  event'[3] # NO_TOKEN /\ r.written_len >= r.known_len /\ r.ids[r.known_len + 1] = event'[3]]_vars

(* A request ends with its first stop token or its max_tokens-th token, not before and not after. *)
ends_with_its_last_token ==
    [][is_event(REPLY) /\ event'[4] # ABORTED =>
        LET r == requests[event'[2]]
        IN  event'[4] = CASE event'[3] \in r.stops -> STOP
                          [] output_len(r) + 1 = r.max_tokens -> LENGTH
                          [] OTHER -> NOT_YET]_vars

(* Every position a step reads holds exactly the tokens of its request up to there. *)
reads_hold_their_prefix == [][is_event(RUN_BATCH) => event'[3] = 1]_vars

(* A call that raises ContractError, or refuses a request, leaves the state as it was. *)
refusal_changes_nothing ==
    [][(is_event(SUBMIT) /\ event'[3] = 0) \/ (is_event(ABORT) /\ event'[3] = 0) \/ (is_event(RESET) /\ event'[2] = 0)
       => UNCHANGED all_but_event]_vars

(* No rule: that it is refuted shows that what does not fit is refused before it is locked. *)
never_refused_before_lock == [][~(is_event(REFUSE) /\ event'[3] = NO_ROOM)]_vars

(* Each evicted leaf is the least recently used evictable leaf at its turn. *)
evict_takes_oldest_leaf ==
    [][is_event(EVICT) => is_oldest_leaf_first(tree.nodes, locked_paths, event'[2])]_vars

(* No sequence of accepted operations stops the engine. *)
steps_complete == is_chosen => num_all_to_take <= Len(free_pages) + tree.evictable_size \div size

\* -- progress, under FairSpec ----------------------------------------------------------------

(* Every accepted request finishes: left alone, the engine comes to rest. *)
requests_finish == \A uid \in 1..3 : uid \in range_of(unended) ~> uid \notin range_of(unended)
=============================================================================
