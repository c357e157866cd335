//! Compression on the fly: a coding of a cached file that a client prefers is made once for each
//! version of the file, on a thread for blocking work, and kept with the file in the cache.
//!
//! Nobody waits for it: until it is there, clients get the best form that is. So a compressor adds
//! no latency, and no request is held in memory for it.

use super::encoding::{Coding, choose};
use super::hosts::Site;
use super::mime::is_compressible;
use super::request::Request;
use super::resource::Resource;
use super::variant::Variant;
use super::worker::{Generation, Worker};
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::cell::{Cell, OnceCell};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::rc::Rc;
use tokio::sync::{Semaphore, SemaphorePermit};
use twinring::fs::Metadata;
use twinring::{spawn, spawn_blocking};

/// Files of these sizes are compressed, in bytes: below, a head weighs more than what is saved; above,
/// a compressor takes a second or more, and its input and output are in memory.
const COMPRESSED_BYTES: RangeInclusive<u64> = 1 << 10..=10 << 20;

#[derive(Debug)]
pub(super) struct Form {
    pub(super) coding: Coding,
    pub(super) progress: Cell<Progress>,
    pub(super) variant: OnceCell<Rc<Variant>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It is a file.
    Stored,
    /// It can be compressed on the fly.
    Untried,
    Running,
    /// That was done; or it is not used, for this version of the file: it would be larger than the
    /// file or than the cache allows, or the compressor failed.
    Done,
}

impl Form {
    pub(super) fn new(coding: Coding, progress: Progress) -> Form {
        Form { coding, progress: Cell::new(progress), variant: OnceCell::new() }
    }

    pub(super) fn stored(variant: Variant) -> Form {
        let form = Form::new(variant.coding, Progress::Stored);
        Form { variant: Rc::new(variant).into(), ..form }
    }
}

/// Codings in which a file of this type can be compressed on the fly, in the order of preference.
pub(super) fn codings_for<'s>(site: &'s Site, file: &Metadata, content_type: &str) -> &'s [Coding] {
    let is_worth_it = COMPRESSED_BYTES.contains(&file.len) && is_compressible(content_type);
    if is_worth_it { &site.compress } else { &[] }
}

/// Compressions at a time, of the whole process: the workers need the CPUs. There is no queue: a
/// request that finds this many under way leaves its file to a later one.
const RUNNING_MAX: usize = 2;

/// How hard the compressors try: what takes tens of milliseconds for a megabyte.
const GZIP_LEVEL: u32 = 6;
const BROTLI_QUALITY: i32 = 5;
/// Of brotli, as a power of two; all decoders have it.
const BROTLI_WINDOW_BITS: i32 = 22;

static RUNNING: Semaphore = Semaphore::const_new(RUNNING_MAX);

/// The form of a resource that the client prefers, of those that are there.
pub(super) fn preferred<'r>(
    request: &Request<'_>,
    resource: &'r Resource,
) -> Option<&'r Rc<Variant>> {
    let index = match resource.forms.as_slice() {
        [_only] => 0,
        _ => best(request, resource, |form| form.variant.get().is_some())?,
    };
    resource.forms.get(index)?.variant.get()
}

/// The index of the form that the client prefers, of those that `counts`. Ranges are of the file itself: what a
/// compressor makes need not be the same bytes next time.
fn best(
    request: &Request<'_>,
    resource: &Resource,
    counts: impl Fn(&Form) -> bool,
) -> Option<usize> {
    let has_range = request.field("range").is_some();
    let is_usable = |(_, form): &(usize, &Form)| {
        counts(form) && (!has_range || form.progress.get() == Progress::Stored)
    };
    let forms = || resource.forms.iter().enumerate().filter(is_usable);
    let codings = forms().map(|(_, form)| form.coding);
    forms().nth(choose(request.lines("accept-encoding"), codings)).map(|(index, _)| index)
}

impl Worker {
    /// Begins to make the form of a cached resource that the client would prefer, unless it is there
    /// or tried already.
    pub(super) fn compress_for(
        self: &Rc<Worker>,
        request: &Request<'_>,
        generation: &Rc<Generation>,
        site: usize,
        path: &[u8],
        resource: &Rc<Resource>,
    ) {
        let is_untried = |form: &Form| form.progress.get() == Progress::Untried;
        if !resource.forms.iter().any(is_untried) {
            return;
        }
        let may_come =
            |form: &Form| form.progress.get() != Progress::Done || form.variant.get().is_some();
        let Some(index) = best(request, resource, may_come) else { return };
        if !is_untried(&resource.forms[index]) {
            return;
        }
        // A resource that the cache does not hold is read again for each request.
        if !generation.cache.holds(site, path, resource) {
            return;
        }
        let Ok(permit) = RUNNING.try_acquire() else { return };
        let (worker, generation) = (Rc::clone(self), Rc::clone(generation));
        let (path, resource) = (path.to_vec(), Rc::clone(resource));
        resource.forms[index].progress.set(Progress::Running);
        spawn(async move {
            let target = &resource.forms[index];
            let made = worker.compress(&resource, target.coding, permit).await;
            if let Some(variant) = made
                && generation.cache.holds(site, &path, &resource)
                && generation.cache.fits(&path, resource.bytes() + variant.bytes())
            {
                let _first = target.variant.set(Rc::new(variant));
                // Its size has changed.
                generation.cache.insert(site, &path, &resource);
                worker.count_cache();
            }
            target.progress.set(Progress::Done);
        });
    }

    async fn compress(
        &self,
        resource: &Resource,
        coding: Coding,
        permit: SemaphorePermit<'static>,
    ) -> Option<Variant> {
        let identity = resource.identity()?;
        // A file that was changed meanwhile gets a new resource.
        let content = identity.content().await?;
        let length = content.len();
        self.counters.compressions.add(1);
        let result = spawn_blocking(move || {
            let _permit = permit;
            compress(coding, &content)
        });
        // A panic would be one of the compressor: it costs only the compressed form.
        let Some(bytes) = result.await.ok().and_then(Result::ok) else {
            self.counters.compression_failures.add(1);
            return None;
        };
        (bytes.len() < length).then(|| identity.compressed(coding, &bytes, &self.clock))
    }
}

fn compress(coding: Coding, content: &[u8]) -> io::Result<Vec<u8>> {
    match coding {
        Coding::Identity => Ok(content.to_vec()),
        Coding::Gzip => {
            let level = flate2::Compression::new(GZIP_LEVEL);
            let mut encoder = GzEncoder::new(Vec::new(), level);
            encoder.write_all(content)?;
            encoder.finish()
        }
        Coding::Brotli => {
            let parameters = brotli::enc::BrotliEncoderParams {
                quality: BROTLI_QUALITY,
                lgwin: BROTLI_WINDOW_BITS,
                size_hint: content.len(),
                ..Default::default()
            };
            let mut bytes = Vec::new();
            brotli::BrotliCompress(&mut &*content, &mut bytes, &parameters)?;
            Ok(bytes)
        }
        Coding::Zstd => Ok(compress_to_vec(content, CompressionLevel::Fastest)),
    }
}
