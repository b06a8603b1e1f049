--------------------------- MODULE SchedulerModels ---------------------------
(* The configurations of the scheduler's models; a model file (.cfg) names the set it draws from. *)
EXTENDS Scheduler

request(ids, max_tokens) == [ids |-> ids, max_tokens |-> max_tokens, stops |-> {0}, sampling_fault |-> 0]

base ==
    [page_size |-> 1, num_pages |-> 3, num_rows |-> 2, max_seq_len |-> 4, row_width |-> 4, token_budget |-> 2,
     cache |-> "radix", is_overlap |-> FALSE, is_late |-> FALSE, vocab_size |-> 3, outputs |-> {0, 1},
     submissions |-> {request(<<1>>, 2), request(<<1, 1>>, 2)}, num_requests |-> 2,
     is_abortable |-> TRUE, is_resettable |-> FALSE, batch_modulus |-> 3, is_counting |-> TRUE]

small == {[base EXCEPT !.is_overlap = overlap] : overlap \in BOOLEAN}
=============================================================================
