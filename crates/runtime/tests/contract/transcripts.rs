//! The pair test: one script, every configuration, byte-identical transcripts.

use crate::support::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io::{Read, Write};
use std::time::Duration;
use twinring::{TcpStream, sleep, spawn};

/// The steps of the service, known to the peer from the same script.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The peer sends a number of bytes, the service answers with their transformation.
    Transform(usize),
    /// The service sends this many bytes in chunks of the second size.
    Pour(usize, usize),
    /// The peer sends this many bytes, and the service returns their sum.
    Sum(usize),
    /// The service pauses for this many microseconds.
    Rest(u64),
}

/// How the script ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    PeerFinishes,
    ServiceFinishes,
    ServiceDrops,
    PeerResets,
}

fn any_script() -> impl Strategy<Value = (Vec<Step>, Ending)> {
    let size = prop_oneof![1usize..100, 100usize..5000, 5000usize..150_000];
    let step = prop_oneof![
        size.clone().prop_map(Step::Transform),
        (size.clone(), 1usize..40_000).prop_map(|(bytes, chunk)| Step::Pour(bytes, chunk)),
        size.prop_map(Step::Sum),
        (0u64..500).prop_map(Step::Rest),
    ];
    let ending = prop_oneof![
        Just(Ending::PeerFinishes),
        Just(Ending::ServiceFinishes),
        Just(Ending::ServiceDrops),
        Just(Ending::PeerResets),
    ];
    (proptest::collection::vec(step, 1..8), ending)
}

/// All bytes that either side observed.
type Transcript = (Vec<u8>, Vec<u8>);

/// The service's side of the script; returns its observations.
async fn serve(stream: TcpStream, script: Vec<Step>, ending: Ending) -> Vec<u8> {
    let mut seen = Vec::new();
    let mut unread = Vec::new();
    for (number, step) in script.into_iter().enumerate() {
        match step {
            Step::Transform(bytes) => {
                let mut left = bytes;
                while left > 0 {
                    let chunk = take(&stream, &mut unread, left).await;
                    left -= chunk.len();
                    seen.extend_from_slice(&chunk);
                    let answer: Vec<u8> = chunk.iter().map(|byte| !byte).collect();
                    stream.send(answer).await.expect("the peer reads");
                }
            }
            Step::Pour(bytes, chunk) => {
                for start in (0..bytes).step_by(chunk) {
                    let end = bytes.min(start + chunk);
                    let chunk = pattern(number as u64, start..end);
                    stream.send(chunk).await.expect("the peer reads");
                }
            }
            Step::Sum(bytes) => {
                let mut left = bytes;
                let mut sum = 0u64;
                while left > 0 {
                    let chunk = take(&stream, &mut unread, left).await;
                    left -= chunk.len();
                    sum += chunk.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                }
                stream.send(sum.to_le_bytes().to_vec()).await.expect("the peer reads");
            }
            Step::Rest(us) => sleep(Duration::from_micros(us)).await,
        }
    }
    match ending {
        Ending::PeerFinishes | Ending::PeerResets => match recv_to_end(&stream).await {
            Ok(rest) => seen.extend_from_slice(format!("end {}", rest.len()).as_bytes()),
            Err(error) => seen.extend_from_slice(format!("{:?}", error.kind()).as_bytes()),
        },
        Ending::ServiceFinishes => {
            stream.shutdown().await.expect("finished");
            let rest = recv_to_end(&stream).await.expect("the peer ends cleanly");
            seen.extend_from_slice(&rest);
        }
        Ending::ServiceDrops => drop(stream),
    }
    seen
}

/// At most `limit` bytes; further received bytes stay in `unread`.
async fn take(stream: &TcpStream, unread: &mut Vec<u8>, limit: usize) -> Vec<u8> {
    if unread.is_empty() {
        let chunk = stream.recv().await.expect("the peer writes");
        assert!(!chunk.is_empty(), "the peer ended in the middle of the script");
        unread.extend_from_slice(&chunk);
    }
    let rest = unread.split_off(limit.min(unread.len()));
    std::mem::replace(unread, rest)
}

/// The peer's side, in blocking calls; returns its observations.
fn follow(mut peer: Peer, script: &[Step], ending: Ending) -> Vec<u8> {
    let mut seen = Vec::new();
    let mut expect = |peer: &mut Peer, bytes: usize| {
        let start = seen.len();
        seen.resize(start + bytes, 0);
        peer.read_exact(&mut seen[start..]).expect("the service answers");
    };
    for (number, step) in script.iter().enumerate() {
        match *step {
            Step::Transform(bytes) => {
                let data = pattern(number as u64 + 50, 0..bytes);
                // Written while the answer is read: neither side may need the other to stop.
                let mut writer = peer.try_clone().expect("a descriptor");
                let writing = std::thread::spawn(move || writer.write_all(&data));
                expect(&mut peer, bytes);
                writing.join().expect("no panic").expect("the service reads");
            }
            Step::Pour(bytes, _) => expect(&mut peer, bytes),
            Step::Sum(bytes) => {
                peer.write_all(&pattern(number as u64 + 90, 0..bytes)).expect("the service reads");
                expect(&mut peer, 8);
            }
            Step::Rest(_) => {}
        }
    }
    match ending {
        Ending::PeerFinishes => {
            finish(&peer);
            seen.extend_from_slice(&read_to_end(&mut peer).expect("no reset"));
        }
        Ending::ServiceFinishes => {
            seen.extend_from_slice(&read_to_end(&mut peer).expect("no reset"));
            peer.write_all(b"my last words").expect("the service reads");
        }
        Ending::ServiceDrops => {
            seen.extend_from_slice(&read_to_end(&mut peer).expect("no reset"));
        }
        Ending::PeerResets => reset(peer),
    }
    seen
}

fn run_script(configuration: Configuration, script: &[Step], ending: Ending) -> Transcript {
    let script = script.to_vec();
    configuration.run(async move {
        let (stream, peer) = narrow_pair().await;
        let theirs = script.clone();
        let peer = on_thread(move || follow(peer, &theirs, ending));
        let service = spawn(serve(stream, script, ending));
        (service.await.expect("not aborted"), peer.await)
    })
}

/// Not a rule of one configuration: each is compared with the first.
pub(crate) fn every_configuration_has_the_same_transcript(configurations: &[Configuration]) {
    let tried: Vec<Configuration> =
        configurations.iter().copied().filter(|it| it.refusal().is_none()).collect();
    let mut runner = TestRunner::new(Config { cases: 12, ..Config::default() });
    let outcome = runner.run(&any_script(), |(script, ending)| {
        let reference = run_script(tried[0], &script, ending);
        for configuration in &tried[1..] {
            let transcript = run_script(*configuration, &script, ending);
            let same = transcript == reference;
            let (name, other) = (configuration.name, tried[0].name);
            prop_assert!(same, "{} and {} differ in {:?}", name, other, script);
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
