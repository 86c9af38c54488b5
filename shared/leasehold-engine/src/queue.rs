//! The queue of a file: many requests are carried out, then one sync makes the writes of all of them durable.
//!
//! A sync takes longer than a request, so one for each request would bound what all callers together get. The requests
//! that arrive during a sync share the next one. No answer leaves before the sync of everything that it tells. Urgent
//! requests have a lane of their own: they wait for the request that runs, and for no other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::operations::{self, Answer};

/// Longest time for which requests are carried out before a sync answers them. A sync takes 0.1 to 10 ms.
const BATCH: Duration = Duration::from_millis(5);

/// One request, and the way of its answer.
struct Job {
    request: Request,
    reply: oneshot::Sender<Answer>,
}

/// An operation of the DynamoDB API, in the kind of its work.
pub(crate) struct Request {
    pub(crate) target: String,
    pub(crate) body: Bytes,
    kind: Option<Kind>,
}

/// The kinds of work that differ from others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Urgent,
    Foreign,
    Expiring,
}

impl Request {
    /// A request in the kind of the work that makes it.
    pub(crate) fn new(target: String, body: Bytes) -> Self {
        Self { target, body, kind: KIND.try_with(|kind| *kind).ok() }
    }

    /// Whether the request's expressions are not Leasehold's own.
    pub(crate) fn is_foreign(&self) -> bool {
        self.kind == Some(Kind::Foreign)
    }

    /// Whether the request deletes an item whose time is over.
    pub(crate) fn is_expiring(&self) -> bool {
        self.kind == Some(Kind::Expiring)
    }
}

/// The right to carry requests out. One thread at a time has it.
pub(crate) struct Turn {
    _given: Arc<()>,
}

tokio::task_local! {
    /// The kind of the work that is under way.
    static KIND: Kind;
}

/// Lets the requests of this work go ahead of others that wait for the file.
pub async fn urgent<T>(work: impl Future<Output = T>) -> T {
    KIND.scope(Kind::Urgent, work).await
}

/// Refuses the requests of this work that would hold up all others. An operation of Leasehold itself stays below the
/// price: it mentions an attribute a few times.
pub async fn foreign<T>(work: impl Future<Output = T>) -> T {
    KIND.scope(Kind::Foreign, work).await
}

/// Marks the deletions of this work as those of items whose time is over.
pub(crate) async fn expiring<T>(work: impl Future<Output = T>) -> T {
    KIND.scope(Kind::Expiring, work).await
}

/// The requests that wait.
#[derive(Default)]
pub(crate) struct Queue(Mutex<State>);

#[derive(Default)]
struct State {
    urgent: VecDeque<Job>,
    ordinary: VecDeque<Job>,
    /// The turn of the thread that works. A thread that ends in any way gives its turn back.
    turn: Weak<()>,
}

impl Queue {
    /// Adds a request. Where no thread works, its caller gets the turn, and must let a thread [`work`](Self::work).
    pub(crate) fn push(&self, request: Request) -> (oneshot::Receiver<Answer>, Option<Turn>) {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state();
        let lane = if request.kind == Some(Kind::Urgent) { &mut state.urgent } else { &mut state.ordinary };
        lane.push_back(Job { request, reply });
        let turn = (state.turn.strong_count() == 0).then(|| {
            let given = Arc::new(());
            state.turn = Arc::downgrade(&given);
            Turn { _given: given }
        });
        (answer, turn)
    }

    /// Carries some of the requests out that wait. `run` carries one out; `sync` makes all before it durable. Returns
    /// the turn where more requests wait.
    pub(crate) fn work(
        &self,
        turn: Turn,
        mut run: impl FnMut(&Request) -> Answer,
        sync: impl FnOnce(bool) -> Result<(), String>,
    ) -> Option<Turn> {
        let begun = Instant::now();
        let (mut has_written, mut answers) = (false, Vec::new());
        while let Some(Job { request, reply }) = self.next(begun, answers.is_empty()) {
            // If the caller gives up before its request has begun, the request is not carried out.
            if !reply.is_closed() {
                let answer = run(&request);
                has_written |= operations::may_have_written(&request.target, answer.status);
                answers.push((reply, answer));
            }
        }
        let synced = sync(has_written);
        for (reply, answer) in answers {
            let answer = match &synced {
                Ok(()) => answer,
                Err(message) => operations::internal_error(message),
            };
            // A caller that gave up meanwhile needs no answer.
            let _ = reply.send(answer);
        }
        self.is_waited_for().then_some(turn)
    }

    /// The next request of a batch. One that may take long does not hold up the answers of those before it.
    fn next(&self, begun: Instant, is_first: bool) -> Option<Job> {
        if begun.elapsed() >= BATCH {
            return None;
        }
        let mut state = self.state();
        let next = state.urgent.front().or_else(|| state.ordinary.front())?;
        if next.request.is_foreign() && !is_first { None } else { state.pop() }
    }

    /// Whether a request waits. Where none does, the turn is taken back under the same lock: no request is left alone.
    fn is_waited_for(&self) -> bool {
        let mut state = self.state();
        let is_waited_for = !(state.urgent.is_empty() && state.ordinary.is_empty());
        if !is_waited_for {
            state.turn = Weak::new();
        }
        is_waited_for
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pop(&mut self) -> Option<Job> {
        self.urgent.pop_front().or_else(|| self.ordinary.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    const WRITE: &str = "DynamoDB_20120810.UpdateItem";
    const READ: &str = "DynamoDB_20120810.GetItem";

    fn push(queue: &Queue, target: &str, body: &'static str) -> (oneshot::Receiver<Answer>, Option<Turn>) {
        queue.push(Request::new(target.to_owned(), Bytes::from_static(body.as_bytes())))
    }

    /// Carries requests out until none waits.
    fn work(queue: &Queue, turn: Turn, run: impl Fn(&Request) -> Answer, sync: impl Fn(bool) -> Result<(), String>) {
        let mut turn = Some(turn);
        while let Some(next) = turn {
            turn = queue.work(next, &run, &sync);
        }
    }

    /// Answers with the request's body and this status.
    fn echo(status: u16) -> impl Fn(&Request) -> Answer {
        move |request| Answer { status, body: request.body.to_vec() }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_leave_after_one_sync_of_all_writes() {
        let queue = Queue::default();
        let (first, turn) = push(&queue, WRITE, "1");
        let (second, none) = push(&queue, WRITE, "2");
        let (read, _) = push(&queue, READ, "3");
        assert!(none.is_none(), "one thread works");
        let answers = RefCell::new([first, second, read]);
        let syncs = RefCell::new(Vec::new());
        work(&queue, turn.unwrap(), echo(200), |has_written| {
            for answer in &mut *answers.borrow_mut() {
                assert!(matches!(answer.try_recv(), Err(TryRecvError::Empty)), "an answer before the sync");
            }
            syncs.borrow_mut().push(has_written);
            Ok(())
        });
        assert_eq!(syncs.into_inner(), [true]);
        assert_eq!(
            answers.into_inner().map(|mut answer| String::from_utf8(answer.try_recv().unwrap().body).unwrap()),
            ["1", "2", "3"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn sync_is_left_out_when_nothing_was_written() {
        for (target, status, expected) in [
            (WRITE, 200, true),
            (WRITE, 400, false),
            (WRITE, 500, true),
            (READ, 200, false),
            ("DynamoDB_20120810.BatchWriteItem", 400, true),
            ("DynamoDB_20120810.TagResource", 200, true),
        ] {
            let queue = Queue::default();
            let (_answer, turn) = push(&queue, target, "");
            work(&queue, turn.unwrap(), echo(status), |has_written| {
                assert_eq!(has_written, expected, "{target} {status}");
                Ok(())
            });
        }
    }

    #[test]
    fn every_caller_hears_of_a_failed_sync() {
        let queue = Queue::default();
        let (mut write, turn) = push(&queue, WRITE, "");
        let (mut read, _) = push(&queue, READ, "");
        work(&queue, turn.unwrap(), echo(200), |_| Err("the disk is gone".to_owned()));
        assert_eq!((write.try_recv().unwrap().status, read.try_recv().unwrap().status), (500, 500));
    }

    #[tokio::test]
    async fn urgent_request_goes_ahead_of_others() {
        let queue = Queue::default();
        let (_slow, turn) = push(&queue, WRITE, "slow");
        let (_ordinary, _) = push(&queue, WRITE, "ordinary");
        let order = RefCell::new(Vec::new());
        let urgent = RefCell::new(None);
        let run = |request: &Request| {
            if request.body == "slow" {
                // This request comes last, while the first one runs.
                let arriving = KIND.sync_scope(Kind::Urgent, || push(&queue, WRITE, "urgent"));
                urgent.replace(Some(arriving.0));
            }
            order.borrow_mut().push(String::from_utf8(request.body.to_vec()).unwrap());
            Answer { status: 200, body: Vec::new() }
        };
        work(&queue, turn.unwrap(), run, |_| Ok(()));
        assert_eq!(order.into_inner(), ["slow", "urgent", "ordinary"]);
    }

    #[tokio::test]
    async fn foreign_request_holds_up_no_answer_before_it() {
        let queue = Queue::default();
        let (own, turn) = push(&queue, WRITE, "own");
        let (foreign, _) = KIND.sync_scope(Kind::Foreign, || push(&queue, WRITE, "foreign"));
        let (own, answered) = (RefCell::new(own), RefCell::new(Vec::new()));
        let run = |request: &Request| {
            if request.is_foreign() {
                answered.borrow_mut().push(own.borrow_mut().try_recv().is_ok());
            }
            Answer { status: 200, body: Vec::new() }
        };
        work(&queue, turn.unwrap(), run, |_| Ok(()));
        assert_eq!(answered.into_inner(), [true]);
        assert!(foreign.await.is_ok());
    }

    #[test]
    fn turn_is_given_again_when_its_thread_fails() {
        let queue = Queue::default();
        let (_lost, turn) = push(&queue, WRITE, "");
        let failing = AssertUnwindSafe(|| work(&queue, turn.unwrap(), |_| panic!("a defect"), |_| Ok(())));
        assert!(catch_unwind(failing).is_err());
        let (mut answer, turn) = push(&queue, WRITE, "");
        work(&queue, turn.expect("nobody works"), echo(200), |_| Ok(()));
        assert_eq!(answer.try_recv().unwrap().status, 200);
    }

    #[test]
    fn request_is_left_out_when_its_caller_gave_up() {
        let queue = Queue::default();
        let (gone, turn) = push(&queue, WRITE, "");
        drop(gone);
        work(&queue, turn.unwrap(), |_| panic!("nobody asks"), |_| Ok(()));
    }
}
