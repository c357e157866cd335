//! The pair test: one script, every configuration, byte-identical transcripts.

use crate::support::*;
use std::io::{Read, Write};
use twinring::{TcpStream, spawn};

/// The steps of the service, known to the peer from the same script.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The peer sends a number of bytes, the service answers with their transformation.
    Transform(usize),
    /// The service sends this many bytes in chunks of the second size.
    Pour(usize, usize),
    /// The peer sends this many bytes, and the service returns their sum.
    Sum(usize),
}

/// How the script ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    PeerFinishes,
    ServiceFinishes,
    ServiceDrops,
    PeerResets,
}

type Script = (Vec<Step>, Ending);

fn script(random: &mut Random) -> Script {
    let size = |random: &mut Random| {
        let largest = [100, 5000, 150_000][random.below(3)];
        1 + random.below(largest)
    };
    let steps = (0..1 + random.below(7))
        .map(|_| match random.below(3) {
            0 => Step::Transform(size(random)),
            1 => Step::Pour(size(random), 1 + random.below(40_000)),
            _ => Step::Sum(size(random)),
        })
        .collect();
    let endings =
        [Ending::PeerFinishes, Ending::ServiceFinishes, Ending::ServiceDrops, Ending::PeerResets];
    (steps, endings[random.below(4)])
}

/// The service's side of the script; returns its observations.
async fn serve(stream: TcpStream, (steps, ending): Script) -> Vec<u8> {
    let mut seen = Vec::new();
    let mut buffer = vec![0; 40_000];
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Transform(mut left) => {
                while left > 0 {
                    let most = left.min(buffer.len());
                    let bytes = stream.recv_into(&mut buffer[..most]).await.expect("it writes");
                    assert!(bytes > 0, "the peer ended in the middle of the script");
                    left -= bytes;
                    seen.extend_from_slice(&buffer[..bytes]);
                    let answer: Vec<u8> = buffer[..bytes].iter().map(|byte| !byte).collect();
                    stream.send(answer).await.expect("the peer reads");
                }
            }
            Step::Pour(bytes, chunk) => {
                for start in (0..bytes).step_by(chunk) {
                    let chunk = pattern(number as u64, start..bytes.min(start + chunk));
                    stream.send(chunk).await.expect("the peer reads");
                }
            }
            Step::Sum(bytes) => {
                let mut all = vec![0; bytes];
                stream.recv_exact(&mut all).await.expect("the peer writes");
                let sum = all.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                stream.send(sum.to_le_bytes().to_vec()).await.expect("the peer reads");
            }
        }
    }
    match ending {
        Ending::PeerFinishes | Ending::PeerResets => match recv_to_end(&stream).await {
            Ok(rest) => seen.extend_from_slice(format!("end {}", rest.len()).as_bytes()),
            Err(error) => seen.extend_from_slice(format!("{:?}", error.kind()).as_bytes()),
        },
        Ending::ServiceFinishes => {
            stream.shutdown().await.expect("finished");
            seen.extend(recv_to_end(&stream).await.expect("the peer ends cleanly"));
        }
        Ending::ServiceDrops => drop(stream),
    }
    seen
}

/// The peer's side, in blocking calls; returns its observations.
fn follow(mut peer: Peer, (steps, ending): Script) -> Vec<u8> {
    let mut seen = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        let (sent, answered) = match step {
            Step::Transform(bytes) => (bytes, bytes),
            Step::Pour(bytes, _) => (0, bytes),
            Step::Sum(bytes) => (bytes, 8),
        };
        // Written while the answer is read: neither side may need the other to stop.
        let mut writer = peer.try_clone().expect("a descriptor");
        let data = pattern(number as u64 + 50, 0..sent);
        let writing = std::thread::spawn(move || writer.write_all(&data));
        let start = seen.len();
        seen.resize(start + answered, 0);
        peer.read_exact(&mut seen[start..]).expect("the service answers");
        writing.join().expect("no panic").expect("the service reads");
    }
    match ending {
        Ending::PeerFinishes => finish(&peer),
        Ending::ServiceFinishes | Ending::ServiceDrops => {}
        Ending::PeerResets => {
            reset(peer);
            return seen;
        }
    }
    seen.extend(read_to_end(&mut peer).expect("no reset"));
    if matches!(ending, Ending::ServiceFinishes) {
        peer.write_all(b"my last words").expect("the service reads");
    }
    seen
}

/// All bytes that either side observed.
fn transcript(configuration: Configuration, script: &Script) -> (Vec<u8>, Vec<u8>) {
    let (ours, theirs) = (script.clone(), script.clone());
    configuration.run(async move {
        let (stream, peer) = narrow_pair().await;
        let peer = on_thread(move || follow(peer, theirs));
        let service = spawn(serve(stream, ours));
        (service.await.expect("not aborted"), peer.await)
    })
}

/// Not a rule of one configuration: each is compared with the first.
pub(crate) fn every_configuration_has_the_same_transcript(configurations: &[Configuration]) {
    let tried: Vec<Configuration> =
        configurations.iter().copied().filter(|it| it.refusal().is_none()).collect();
    let mut random = Random::new(12);
    for _ in 0..16 {
        let script = script(&mut random);
        let reference = transcript(tried[0], &script);
        for configuration in &tried[1..] {
            let same = transcript(*configuration, &script) == reference;
            let (name, other) = (configuration.name, tried[0].name);
            assert!(same, "{name} and {other} differ in {script:?}");
        }
    }
}
