//! Fuzz targets for what comes from outside, on the stable toolchain: frames of the wire, targets and paths of files as callers write
//! them, what they ask of a sandbox, files that the doors keep, what sessions say to their proxy, and HTTP requests. `probe.py` beside this does the same for the Python end.
//!
//! `cargo test --test fuzz -- [TARGET…] [--seconds N] [--seed S] [--input FILE]`. The same seed makes the same inputs. What fails is made
//! as small as possible and written to a file, which `--input` tries again; the fix comes with a test beside the code.

#![expect(clippy::print_stdout, reason = "it tells people how it went")]

mod http;
mod kept;
mod mutate;
mod paths;
mod proxy;
mod rules;
mod wire;

use std::{
    collections::HashSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mutate::Random;

/// What an input takes at most, in processor time: hangs, and lengths that are multiplied.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Past this the process is ended: it is not coming back.
const HANGS_AFTER: Duration = Duration::from_mins(1);
const MOST_KEPT: usize = 5000;

/// Something that reads inputs.
trait Target {
    /// What to start from.
    fn seeds(&self) -> Vec<Vec<u8>>;

    /// What is worth inserting.
    fn words(&self) -> &'static [&'static str];

    /// A change that knows the format, if it can make one.
    fn mutate(&self, input: &[u8], random: &mut Random) -> Option<Vec<u8>>;

    /// Tries an input. The error is a promise that was not kept; otherwise it says how it went, in a few words: an input that went as
    /// none before is kept, to be changed again.
    fn run(&mut self, input: &[u8]) -> Result<String, String>;

    /// Looks at what only shows after many inputs.
    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}

const NAMES: &[&str] = &["wire", "paths", "rules", "tokens", "audit", "proxy", "http"];

fn target(name: &str) -> Box<dyn Target> {
    match name {
        "wire" => Box::new(wire::Frames),
        "paths" => Box::new(paths::Paths::new()),
        "rules" => Box::new(rules::Rules),
        "tokens" => Box::new(kept::Tokens::new()),
        "audit" => Box::new(kept::Audit::new()),
        "proxy" => Box::new(proxy::Connections::new()),
        _ => Box::new(http::Requests::new()),
    }
}

struct Options {
    targets: Vec<String>,
    seconds: f64,
    seed: u64,
    input: Option<PathBuf>,
}

fn options() -> Option<Options> {
    let mut options = Options { targets: Vec::new(), seconds: 3.0, seed: 1, input: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => options.seconds = arguments.next()?.parse().ok()?,
            "--seed" => options.seed = arguments.next()?.parse().ok()?,
            "--input" => options.input = Some(arguments.next()?.into()),
            name if NAMES.contains(&name) => options.targets.push(argument),
            _ => return None,
        }
    }
    if options.targets.is_empty() {
        options.targets = NAMES.iter().map(ToString::to_string).collect();
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        println!("usage: fuzz [{}]… [--seconds N] [--seed S] [--input FILE]", NAMES.join("|"));
        return ExitCode::from(2);
    };
    // Panics are findings and told as such.
    std::panic::set_hook(Box::new(|_| ()));
    let mut is_clean = true;
    for name in &options.targets {
        let mut target = target(name);
        is_clean &= match &options.input {
            Some(path) => retry(&mut *target, path),
            None => fuzz(name, &mut *target, &options),
        };
    }
    if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn retry(target: &mut dyn Target, path: &Path) -> bool {
    let tried = attempt(target, &fs::read(path).expect("the input can be read"));
    println!("{tried:?}");
    tried.is_ok()
}

fn fuzz(name: &str, target: &mut dyn Target, options: &Options) -> bool {
    let mut random = Random::new(Random::of(name.as_bytes()).next() ^ options.seed);
    let watched = Watch::start(name);
    let mut corpus = target.seeds();
    let mut fresh = corpus.clone();
    let mut seen = HashSet::new();
    let mut runs = 0_u64;
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < options.seconds {
        let input = fresh.pop().unwrap_or_else(|| vary(target, &corpus, &mut random));
        runs += 1;
        watched.note(&input);
        match attempt(target, &input) {
            Ok(told) if seen.len() < MOST_KEPT => {
                if seen.insert(told) {
                    corpus.push(input);
                }
            }
            Ok(_) => {}
            Err(why) => {
                watched.pause();
                let path = keep(name, &shrink(target, input));
                println!("{name}: {why}\n  after {runs} inputs of seed {}, in {}", options.seed, path.display());
                return false;
            }
        }
    }
    watched.pause();
    let took = began.elapsed();
    let speed = u128::from(runs) * 1000 / took.as_millis().max(1);
    let kept = corpus.len();
    if let Err(why) = target.finish() {
        println!("{name}: {why}\n  after {runs} inputs of seed {}", options.seed);
        return false;
    }
    println!(
        "{name}: {runs} inputs in {} s ({speed}/s), {kept} kept, seed {}: nothing found",
        took.as_secs(),
        options.seed
    );
    true
}

/// An input made from one of those that are kept: of the later ones more often.
fn vary(target: &dyn Target, corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let from = if random.one_in(2) { 0 } else { corpus.len() * 3 / 4 };
    let mut input = corpus[from + random.below(corpus.len() - from)].clone();
    for _ in 0..1 << random.below(3) {
        let changed = if random.one_in(3) { None } else { target.mutate(&input, random) };
        input = changed.unwrap_or_else(|| mutate::bytes(&input, corpus, target.words(), random));
    }
    input
}

fn attempt(target: &mut dyn Target, input: &[u8]) -> Result<String, String> {
    let before = processor_time();
    let told = catch_unwind(AssertUnwindSafe(|| target.run(input))).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref().map(|text: &&str| (*text).to_owned()));
        Err(format!("it panicked: {}", text.unwrap_or_default()))
    })?;
    let took = processor_time().saturating_sub(before);
    if took > MAX_TIME { Err(format!("it took {took:?}")) } else { Ok(told) }
}

/// Of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it is a timespec, and the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Takes pieces away as long as it still fails.
fn shrink(target: &mut dyn Target, mut input: Vec<u8>) -> Vec<u8> {
    let until = Instant::now() + Duration::from_secs(20);
    let mut size = input.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < input.len() && Instant::now() < until {
            let mut shorter = input.clone();
            shorter.drain(at..(at + size).min(input.len()));
            if attempt(target, &shorter).is_err() {
                input = shorter;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    input
}

fn keep(name: &str, input: &[u8]) -> PathBuf {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}-{:016x}.bin", Random::of(input).next()));
    fs::write(&path, input).expect("the target directory is writable");
    path
}

/// Ends the process when one input takes forever, and keeps that input.
struct Watch(Arc<Mutex<Current>>);

/// What is being tried, since when.
type Current = Option<(Instant, Vec<u8>)>;

impl Watch {
    fn start(name: &str) -> Self {
        let current = Arc::new(Mutex::new(None));
        let (watched, name) = (Arc::downgrade(&current), name.to_owned());
        std::thread::spawn(move || {
            while let Some(current) = watched.upgrade() {
                let current: &Mutex<Current> = &current;
                if let Some((since, input)) = &*current.lock().unwrap_or_else(PoisonError::into_inner)
                    && since.elapsed() > HANGS_AFTER
                {
                    println!("{name}: it hangs\n  in {}", keep(&name, input).display());
                    std::process::exit(1);
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Self(current)
    }

    fn note(&self, input: &[u8]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), input.to_vec()));
    }

    fn pause(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
