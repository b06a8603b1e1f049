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

late == {[base EXCEPT !.is_overlap = TRUE, !.is_late = TRUE, !.num_pages = 4, !.max_seq_len = 5, !.row_width = 5,
                      !.submissions = {request(<<1>>, 2), request(<<1, 1, 2>>, 2), request(<<1, 1>>, 3)}]}

in_pairs == {[base EXCEPT !.is_overlap = overlap, !.page_size = 2, !.max_seq_len = 6, !.row_width = 6,
                      !.submissions = {request(<<1, 1, 1>>, 2), request(<<1, 1>>, 3)}] : overlap \in BOOLEAN}
(* What submit refuses, and what it clamps; a pool that some requests can never fit. *)
faulty(fault) == [ids |-> <<1>>, max_tokens |-> 1, stops |-> {}, sampling_fault |-> fault]
limits == {[base EXCEPT !.num_pages = 2, !.num_rows = 1, !.is_resettable = TRUE,
            !.submissions = {request(<<1>>, 2), request(<<1, 1>>, 2), request(<<1, 1, 1, 1>>, 1),
                             request(<< >>, 1), request(<<1, 3>>, 1), request(<<1>>, 0), faulty(BAD_TOP_K)}]}
wide == {[base EXCEPT !.num_pages = 9, !.submissions = {request(<<1>>, 9)}, !.num_requests = 1]}

too_long == {[base EXCEPT !.is_overlap = TRUE, !.num_pages = 4, !.submissions = {request(<<1, 1, 1, 1>>, 1)}, !.num_requests = 1]}
never_fits == {[base EXCEPT !.num_pages = 2, !.submissions = {request(<<1>>, 2), request(<<1, 1>>, 2)}]}

(* Two requests whose pages are larger than their tokens. *)
quads == {[base EXCEPT !.is_overlap = TRUE, !.page_size = 4, !.num_pages = 2, !.max_seq_len = 8, !.row_width = 8,
                       !.token_budget = 4, !.submissions = {request(<<1, 1, 1, 1>>, 2), request(<<2>>, 2)}]}

(* Free memory that is mostly the prefix being matched, while another request has pages to come. *)
matched == {[base EXCEPT !.is_overlap = TRUE, !.num_pages = 4, !.num_requests = 3, !.is_abortable = FALSE,
                         !.submissions = {request(<<1, 1>>, 1), request(<<2>>, 2), request(<<1, 1, 1>>, 1)}]}

row_of_three == {[base EXCEPT !.page_size = 2, !.max_seq_len = 3, !.row_width = 3]}

(* Waiting behind what does not fit now, chunks, and what can never fit. *)
progress == {[base EXCEPT !.is_overlap = overlap, !.num_pages = 3, !.num_rows = 1, !.token_budget = 1,
              !.submissions = {request(<<1, 1>>, 2), request(<<1, 1, 2>>, 2)}] : overlap \in BOOLEAN}

(* Three requests, two rows, four pages of two slots, overlap, late work, an abort at any time. *)
three_late == {[base EXCEPT !.page_size = 2, !.num_pages = 4, !.num_rows = 2, !.num_requests = 3, !.is_overlap = TRUE,
                            !.is_late = TRUE, !.max_seq_len = 6, !.row_width = 6, !.token_budget = 3,
                            !.submissions = {request(<<1, 1, 2>>, 2), request(<<1, 1>>, 3), request(<<1, 2, 1, 1>>, 1),
                                             request(<<1>>, 3)}]}

(* Three requests in pages of one slot, chunked, in every pairing of loop and lateness. *)
three_chunked == {[base EXCEPT !.num_pages = 5, !.num_requests = 3, !.is_overlap = TRUE, !.is_late = TRUE,
                               !.max_seq_len = 5, !.row_width = 5, !.token_budget = budget,
                               !.submissions = {request(<<1, 1, 2>>, 2), request(<<1>>, 3), request(<<1, 1>>, 2)}] :
                  budget \in {1, 2}}

(* Three requests at a time. *)
three_rows == {[base EXCEPT !.page_size = 2, !.num_pages = 5, !.num_rows = 3, !.num_requests = 3, !.is_overlap = TRUE,
                            !.is_late = TRUE, !.max_seq_len = 6, !.row_width = 6, !.token_budget = 4,
                            !.submissions = {request(<<1, 1, 2>>, 2), request(<<1, 1>>, 3), request(<<1>>, 3)}]}

(* Three requests of four kinds, pages of one slot. *)
three_mixed == {[base EXCEPT !.num_pages = 4, !.num_requests = 3, !.is_overlap = TRUE, !.is_late = TRUE,
                             !.max_seq_len = 5, !.row_width = 5, !.token_budget = 3,
                             !.submissions = {request(<<1, 1, 2>>, 2), request(<<1>>, 3), request(<<1, 1>>, 2),
                                              request(<<2, 1>>, 3)}]}

(* Four requests, late work, pages of two slots. *)
four_late == {[base EXCEPT !.page_size = 2, !.num_pages = 4, !.num_requests = 4, !.is_overlap = TRUE, !.is_late = TRUE,
                           !.max_seq_len = 6, !.row_width = 6, !.token_budget = 3,
                           !.submissions = {request(<<1, 1, 2>>, 2), request(<<1, 1>>, 3)}]}

(* Four requests, three rows, without late work. *)
four_requests == {[base EXCEPT !.num_pages = 5, !.num_rows = 3, !.num_requests = 4, !.is_overlap = overlap,
                               !.token_budget = 3,
                               !.submissions = {request(<<1, 1>>, 2), request(<<1>>, 2), request(<<2, 1, 1>>, 1)}] :
                  overlap \in BOOLEAN}

hunt == small \union late \union in_pairs
=============================================================================
