/* Emit, seal, mark, commit, fence: what exactly_once rests on, small enough to be looked at whole.
 *
 * One source partition with RECORDS records, of which some are near (emitted from memory) and some far (through the
 * overflow); two processes that take the partition from each other. Every step below is one message or one script, and
 * between any two steps a process may crash, be overtaken as a zombie, or find Redis wiped or set back.
 *
 *   transaction   emissions + done marks + overflow entry + offsets, committed as a whole. Offsets are sent first, and
 *                 only then is the generation checked; a later commit isn't. So whoever takes over must wait for it
 *                 ("stable" offsets), and the coordinator ends what its owner leaves open.
 *   change block  n is committed to the ledger, then applied to Redis: hw = n - 1 -> write, hw = n; hw >= n -> nothing;
 *                 else refused: loss. Its offset stays open until Redis has acknowledged it.
 *   recovery      done = settled, or entry with a number up to hw; the other entries are redone as they are read again;
 *                 hw below A is loss: blocks from hw + 1 on are applied again before anything is promoted.
 *   W             no record that isn't settled is passed by a committed W.
 *
 * Must hold: nothing is emitted twice; when nothing can happen any more, everything has been emitted.
 * Each flag BUG_... is a way to build it wrong; the model must find every one (test_model.py).
 */
#ifndef RECORDS
#define RECORDS 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef TAKEOVERS
#define TAKEOVERS 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef LOST_REPLIES
#define LOST_REPLIES 1
#endif

#define BIT(r) (1 << (r))
#define ALL (BIT(RECORDS) - 1)
#define IN(r, set) (((set) >> (r)) & 1)
#define NOBODY 2

/* --- durable ------------------------------------------------------------------------------------------------- */
byte far;              /* records that go through the overflow */
byte emitted;          /* visible to read_committed readers */
byte settled;          /* done marks in the ledger */
byte number_of[RECORDS]; /* change block with the record's entry, 0: none */
byte last_number;
byte low;              /* L: offsets below are settled, or in the overflow and acknowledged */
byte acknowledged;     /* A */
byte watermark;        /* W, as the set of records that it has passed */
byte hw;               /* Redis: last change block applied */
byte kept;             /* Redis: records there */
byte generation;       /* group coordinator */
byte owner = NOBODY;
bool pending;          /* transaction coordinator: offsets sent, not yet ended */
byte pending_of;
byte crashes = CRASHES, takeovers = TAKEOVERS, losses = LOSSES, lost_replies = LOST_REPLIES;

/* --- one process: gone with it ------------------------------------------------------------------------------- */
typedef Process {
  bool up; bool rebuilding;
  bool aborted;        /* the coordinator ended its transaction */
  byte generation;
  byte next;           /* read position */
  byte done;           /* settled, or acknowledged by Redis */
  byte settled;        /* settled as it knows */
  byte puts;           /* far, not yet in a block */
  byte entries;        /* in a committed change block, as it knows */
  byte payloads;       /* entries whose record it has read */
  byte passover;           /* not to be promoted: overtaken, or settled ahead */
  byte passed;         /* promoted */
  byte wheel;          /* promoted, waiting for its time */
  byte open_emitted;   /* in the open transaction */
  byte acknowledged;
  byte number;
  byte phase;          /* of the transaction being committed: 0 none, 1 handed over, 2 offsets sent */
  byte sent_emitted;
  byte sent_put;       /* record + 1, 0: none */
  byte sent_low; byte sent_acknowledged; byte sent_watermark;
};
Process process[2];
#define me process[p]

inline forget(p) {
  me.up = 0; me.rebuilding = 0; me.aborted = 0; me.generation = 0; me.next = 0; me.done = 0; me.settled = 0; me.puts = 0;
  me.entries = 0; me.payloads = 0; me.passover = 0; me.passed = 0; me.open_emitted = 0; me.acknowledged = 0;
  me.wheel = 0;
  me.number = 0; me.phase = 0; me.sent_emitted = 0; me.sent_put = 0; me.sent_low = 0; me.sent_acknowledged = 0;
  me.sent_watermark = 0;
}

/* What Redis has acknowledged is done for Kafka, unless the wheel has it with its offset open. */
inline in_care(p) {
  r = 0;
  do
  :: r < RECORDS ->
     if
     :: number_of[r] > 0 && number_of[r] <= me.acknowledged && IN(r, me.entries) && !IN(r, me.passover | watermark) ->
        me.done = me.done | BIT(r)
     :: else
     fi;
     r++
  :: else -> break
  od;
  r = 0
}

/* Commit -> replay of the ledger -> the lane as it was. */
inline recover(p) {
  generation++; owner = p;
  forget(p);
  me.up = 1; me.generation = generation; me.next = low;
  me.settled = settled; me.done = settled; me.passover = settled; me.passed = watermark;
  me.number = (hw > last_number -> hw : last_number);
  me.acknowledged = hw;
  r = 0;
  do
  :: r < RECORDS -> if :: number_of[r] > 0 -> me.entries = me.entries | BIT(r) :: else fi; r++
  :: else -> break
  od;
  in_care(p);
#ifdef BUG_NO_REDO
  me.number = hw;
  do
  :: r < RECORDS -> if :: number_of[r] > hw -> me.entries = me.entries & ~BIT(r) :: else fi; r++
  :: else -> break
  od;
  r = 0;
#endif
#ifndef BUG_LOSS_UNSEEN
  me.rebuilding = (hw < acknowledged);
#endif
}

/* L: below it everything is settled (this transaction's included), or acknowledged by Redis. */
inline find_low(p) {
  me.sent_low = 0;
  do
  :: me.sent_low < me.next && IN(me.sent_low, me.done | me.sent_emitted) -> me.sent_low++
#ifdef BUG_DONE_BEFORE_REDIS
  :: me.sent_low < me.next && !IN(me.sent_low, me.done | me.sent_emitted) && IN(me.sent_low, me.entries) -> me.sent_low++
#endif
  :: else -> break
  od
}

inline seal(p) {
  me.sent_emitted = me.open_emitted; me.open_emitted = 0;
  me.sent_put = 0; r = 0;
  do
  :: r < RECORDS && !IN(r, me.puts) -> r++
  :: else -> break
  od;
  if
  :: r < RECORDS -> me.sent_put = r + 1; me.puts = me.puts & ~BIT(r)
  :: else
  fi;
  r = 0;
  find_low(p);
  me.sent_acknowledged = me.acknowledged;
#ifdef BUG_WATERMARK_AHEAD
  me.sent_watermark = me.passed;
#else
  me.sent_watermark = me.passed & (me.settled | me.sent_emitted | (me.passover & ~me.done));
#endif
  me.phase = 1;
}

inline commit(p) {
#ifdef BUG_MARK_FIRST
  assert(!(emitted & me.sent_emitted & ~settled));
  settled = settled | me.sent_emitted;
#else
  assert(!(emitted & me.sent_emitted));                       /* nothing is emitted twice */
  emitted = emitted | me.sent_emitted;
#ifndef BUG_MARK_LATER
  settled = settled | me.sent_emitted;
#endif
#endif
  if
  :: me.sent_put > 0 ->
     assert(number_of[me.sent_put - 1] == 0);                 /* decided once */
     me.number++; last_number = me.number;
     number_of[me.sent_put - 1] = me.number;
     me.entries = me.entries | BIT(me.sent_put - 1);
     me.payloads = me.payloads | BIT(me.sent_put - 1)
  :: else
  fi;
  low = (me.sent_low > low -> me.sent_low : low);
  acknowledged = (me.sent_acknowledged > acknowledged -> me.sent_acknowledged : acknowledged);
  watermark = watermark | me.sent_watermark;
  me.settled = me.settled | me.sent_emitted; me.done = me.done | me.sent_emitted;
  me.sent_emitted = 0; me.sent_put = 0; me.sent_low = 0; me.sent_acknowledged = 0; me.sent_watermark = 0;
  me.phase = 0; pending = 0;
}

/* Anything that a commit would tell: what is to be emitted or put, and marks that have moved. */
#define TO_TELL(p) (me.open_emitted || me.puts || me.acknowledged > acknowledged || \
  (me.passed & ~watermark & (me.settled | (me.passover & ~me.done))) || \
  (low < me.next && IN(low, me.done)))

/* The lowest change block that this process knows to be committed and Redis has not acknowledged. */
inline apply(p) {
  r = 0;
  do
  :: r < RECORDS && !(number_of[r] == me.acknowledged + 1 && IN(r, me.entries)) -> r++
  :: else -> break
  od;
  if
  :: r < RECORDS && (IN(r, me.payloads) || IN(r, me.done)) ->
     if
     :: hw == number_of[r] - 1 -> hw = number_of[r]; if :: !IN(r, me.settled) -> kept = kept | BIT(r) :: else fi
     :: hw >= number_of[r] -> skip
     :: else -> me.rebuilding = 1
     fi;
     if
     :: me.rebuilding
     :: !me.rebuilding ->
        me.acknowledged = number_of[r];
        if :: !IN(r, me.passover) -> me.done = me.done | BIT(r) :: else fi
     :: !me.rebuilding && lost_replies > 0 -> lost_replies--   /* done, and nobody hears of it */
     fi
  :: else
  fi;
  r = 0
}
#define TO_APPLY(p, q) (number_of[q] == me.acknowledged + 1 && IN(q, me.entries) && (IN(q, me.payloads) || IN(q, me.done)))

/* Blocks from hw + 1 on, in order, payloads read from the source again by offset. */
inline rebuild(p) {
  r = 0;
  do
  :: r < RECORDS && number_of[r] != hw + 1 -> r++
  :: else -> break
  od;
  if
  :: hw < last_number && r < RECORDS -> hw++; if :: !IN(r, settled) -> kept = kept | BIT(r) :: else fi
  :: else ->
     me.rebuilding = 0;
     me.acknowledged = (hw > me.acknowledged -> hw : me.acknowledged);
     in_care(p)
  fi;
  r = 0
}

proctype Sidecar(byte p) {
  byte r;
end:
  do
  /* group: a free partition, or one whose owner is given up (it may be alive: a zombie from now on) */
#ifdef BUG_UNSTABLE_OFFSETS
  :: atomic { !me.up && (owner == NOBODY || !process[owner].up) -> recover(p) }
  :: atomic { !me.up && owner == 1 - p && process[1 - p].up && takeovers > 0 -> takeovers--; recover(p) }
#else
  :: atomic { !me.up && !pending && (owner == NOBODY || !process[owner].up) && (p == 0 || generation > 0) -> recover(p) }
  :: atomic { !me.up && !pending && owner == 1 - p && process[1 - p].up && takeovers > 0 -> takeovers--; recover(p) }
#endif
  :: atomic { me.up && crashes > 0 -> crashes--; if :: owner == p -> owner = NOBODY :: else fi; forget(p) }

  /* read: done ones are passed over, known entries are redone and never decided again */
  :: atomic { me.up && !me.rebuilding && me.next < RECORDS ->
     do
     :: me.next == RECORDS -> break
     :: else ->
     r = me.next; me.next++;
     if
     :: IN(r, me.done) -> skip
     :: !IN(r, me.done) && IN(r, me.entries) && IN(r, me.passed) -> me.open_emitted = me.open_emitted | BIT(r); me.passover = me.passover | BIT(r);
        me.payloads = me.payloads | BIT(r)
     :: !IN(r, me.done) && IN(r, me.entries) && !IN(r, me.passed) -> me.payloads = me.payloads | BIT(r)
     :: !IN(r, me.done) && !IN(r, me.entries) && !IN(r, far) -> me.open_emitted = me.open_emitted | BIT(r)
     :: !IN(r, me.done) && !IN(r, me.entries) && IN(r, far) -> me.puts = me.puts | BIT(r)
     fi;
#ifdef BUG_REDIS_FIRST
     if
     :: IN(r, me.puts) && hw == me.number -> hw++; kept = kept | BIT(r)
     :: else
     fi;
#endif
     r = 0
     od }

  /* due before Redis has it: into the wheel; its entry goes its way, its copy is passed over */
  :: atomic { me.up && !me.rebuilding && me.puts -> r = 0;
     do :: IN(r, me.puts) -> break :: else -> r++ od;
     me.puts = me.puts & ~BIT(r); me.open_emitted = me.open_emitted | BIT(r); r = 0 }
  :: atomic { me.up && !me.rebuilding && (me.payloads & ~me.done & ~me.passover) -> r = 0;
     do :: IN(r, me.payloads & ~me.done & ~me.passover) -> break :: else -> r++ od;
#ifndef BUG_OVERTAKEN_PROMOTED
     me.passover = me.passover | BIT(r);
#endif
     me.payloads = me.payloads & ~BIT(r) | BIT(r); me.open_emitted = me.open_emitted | BIT(r);
#ifdef BUG_OVERTAKEN_PROMOTED
     me.done = me.done | BIT(r);
#endif
     r = 0 }

  :: atomic { me.up && !me.rebuilding && me.wheel -> me.open_emitted = me.open_emitted | me.wheel; me.wheel = 0 }

  /* the committer: hand over, offsets (the generation is checked here and only here), end */
  :: atomic { me.up && !me.rebuilding && !me.phase && TO_TELL(p) -> seal(p) }
  :: atomic { me.up && me.phase == 1 && !pending ->
     if
#ifdef BUG_NO_FENCE
     :: true -> pending = 1; pending_of = p; me.phase = 2
#else
     :: me.generation == generation -> pending = 1; pending_of = p; me.phase = 2
     :: else -> forget(p)
#endif
     fi }
  :: atomic { me.up && me.phase == 2 && !me.aborted -> commit(p) }
  :: atomic { me.up && me.phase == 2 && me.aborted -> if :: owner == p -> owner = NOBODY :: else fi; forget(p) }

  /* Redis: apply what is committed, promote what is acknowledged, tidy what is settled; zombies do it too */
  :: atomic { me.up && !me.rebuilding && (TO_APPLY(p, 0) || TO_APPLY(p, 1) || TO_APPLY(p, RECORDS - 1)) -> apply(p) }
  :: atomic { me.up && me.rebuilding -> rebuild(p) }
  :: atomic { me.up && !me.rebuilding && (me.entries & me.done & ~me.passed & ~me.passover & ~me.settled) -> r = 0;
     do :: IN(r, me.entries & me.done & ~me.passed & ~me.passover & ~me.settled) -> break :: else -> r++ od;
     if
#ifndef BUG_LOSS_UNSEEN
     :: hw < me.acknowledged -> me.rebuilding = 1            /* the page is discarded */
     :: hw >= me.acknowledged ->
#else
     :: true ->
#endif
        me.passed = me.passed | BIT(r);
        if :: IN(r, kept) -> me.wheel = me.wheel | BIT(r) :: else fi
     fi;
     r = 0 }
  :: atomic { me.up && !me.rebuilding && (me.entries & me.passover & ~me.passed) -> me.passed = me.passed | (me.entries & me.passover) }
#ifdef BUG_TIDY_EARLY
  :: atomic { me.up && (kept & (me.settled | me.open_emitted)) -> kept = kept & ~(me.settled | me.open_emitted) }
#else
  :: atomic { me.up && (kept & me.settled) -> kept = kept & ~me.settled }
#endif
  od
}

/* Ends the transactions of the dead, and of those who take too long. */
proctype Coordinator() {
end:
  do
  :: atomic { pending && (!process[pending_of].up || process[pending_of].phase != 2) -> pending = 0 }
  :: atomic { pending && process[pending_of].up && process[pending_of].phase == 2 && !process[pending_of].aborted &&
     process[pending_of].generation != generation -> process[pending_of].aborted = 1; pending = 0 }
  od
}

/* Wiped, or an older copy: any state that it has had. */
proctype Redis() {
  byte r, back;
end:
  do
  :: atomic { losses > 0 && hw > 0 -> losses--;
     select(back : 0 .. 2);
     if :: back < hw -> hw = back :: else -> hw = 0 fi;
     r = 0;
     do
     :: r < RECORDS -> if :: number_of[r] > hw || number_of[r] == 0 -> kept = kept & ~BIT(r) :: else fi; r++
     :: else -> break
     od;
     r = 0; back = 0 }
  od
}

init {
  atomic {
    if
    :: far = ALL - 1
    :: far = ALL
    fi;
    run Sidecar(0); run Sidecar(1); run Coordinator(); run Redis()
  };
  timeout -> assert(emitted == ALL && settled == ALL)         /* nothing is lost: nobody can do anything more */
}
