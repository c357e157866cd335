//! What is concluded from records of runs, and how it is told. No experiment is run here: `tests/lab` of the command
//! does that, with the program itself.

mod checks;
mod decisions;
mod foreign_files;
mod pages;
mod records;
mod tampering;

fn main() -> std::process::ExitCode {
    testing::run(&[
        checks::TESTS,
        decisions::TESTS,
        foreign_files::TESTS,
        pages::TESTS,
        tampering::TESTS,
    ])
}
