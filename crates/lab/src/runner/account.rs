//! What a run cost, from what was looked at.

use super::Run;
use crate::accounting::{ClientWindow, CpuUse, MemoryUse, Sides, cpu_use, cpu_use_between_hosts};
use crate::clock::Offset;
use crate::contract::LoadResult;
use crate::experiment::NetKind;
use crate::record::Failure;

impl Run<'_> {
    /// Turns samples into the CPU use of the window.
    pub(super) fn account(&mut self, clocks: &[Offset]) {
        let mut windows = Vec::new();
        for index in 0..self.clients.len() {
            match self.client_window(index, clocks) {
                Ok(window) => windows.push(window),
                Err(why) => {
                    let why = self.at_client(index, why);
                    return self.fail(Failure::BadLine { why });
                }
            }
        }
        if let (&[server_at_ready, server_at_end], &[kernel_at_ready, kernel_under_load]) =
            (&self.server_memory[..], &self.kernel_memory[..])
        {
            self.record.memory = Some(MemoryUse {
                server_at_ready,
                server_at_end,
                kernel_at_ready,
                kernel_under_load,
            });
        }
        match self.cpu_use(&windows, clocks) {
            Ok(cpu) => self.record.cpu = Some(cpu),
            Err(why) => self.fail(Failure::NoAccounting { why }),
        }
    }

    fn cpu_use(&self, windows: &[ClientWindow], clocks: &[Offset]) -> Result<CpuUse, String> {
        match (self.network.record.kind, windows) {
            (NetKind::Hosts, _) => cpu_use_between_hosts(windows, &clocks[..self.servers.len()]),
            (_, [ClientWindow { samples, window_ns, .. }]) => {
                Ok(cpu_use(samples, self.bench.cpus.shared, *window_ns))
            }
            _ => Err("one host has one load generator".to_owned()),
        }
    }

    /// What one client says of its window, with the samples at its ends.
    ///
    /// # Errors
    /// What is missing or cannot be read.
    fn client_window(&mut self, index: usize, clocks: &[Offset]) -> Result<ClientWindow, String> {
        let line = match self.record.clients.get(index) {
            Some(client) => client.load.as_ref(),
            None => self.record.load.as_ref(),
        };
        let line = line.ok_or("the load generator printed no result")?;
        let result = LoadResult::read(line).map_err(|why| format!("the result line: {why}"))?;
        let window = result.window();
        let window_ns = [window.start_monotonic_ns, window.end_monotonic_ns];
        let samples = std::mem::take(&mut self.clients[index].samples);
        let marks = samples.len();
        let samples = <[Sides; 2]>::try_from(samples)
            .map_err(|_| format!("{marks} marks instead of window_start and window_end"))?;
        // The first clocks are those of the servers' hosts.
        let clock = clocks.get(self.servers.len() + index).copied().unwrap_or(Offset::NONE);
        Ok(ClientWindow { samples, window_ns, clock })
    }
}
