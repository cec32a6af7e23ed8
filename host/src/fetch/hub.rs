//! From a hub, through its own client library. That library bounds no wait, panics on odd answers and
//! checks no digest: here it runs watched, and what it brings is checked.

use super::{
    FetchError, Fetcher,
    cache::Cache,
    digest,
    meter::Meter,
    source::{HubFile, is_relative_path},
    watch::{Lost, watched},
};
use hf_hub::{
    Repo, RepoType,
    api::sync::{Api, ApiBuilder, ApiError, ApiRepo},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// How long a hub may take to tell of a file: closed networks swallow packets, and nobody should wait long
/// to learn that.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// How long a transfer may stand still.
const STALL: Duration = Duration::from_secs(30);
/// How often a broken transfer is continued.
const RETRIES: usize = 3;
/// Most files of a model in a repository.
const MOST_FILES: usize = 200;
/// In a snapshot's folder once all of it is there: the model's file, or nothing for the folder itself.
const COMPLETE: &str = "met-complete";

/// The model, where it was fetched before.
pub(super) fn find(fetcher: &Fetcher, wanted: &HubFile) -> Option<PathBuf> {
    let cached = cache(fetcher).repo(repo(wanted));
    if let Some(file) = &wanted.file {
        return cached.get(file);
    }
    let complete = cached.get(COMPLETE)?;
    let file = fs::read_to_string(&complete).ok()?;
    let folder = complete.parent()?;
    Some(if file.is_empty() {
        folder.to_owned()
    } else {
        folder.join(file)
    })
}

/// Fetches the file; or the model, where no file is named.
pub(super) fn fetch(
    fetcher: &Fetcher,
    wanted: &HubFile,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<PathBuf, FetchError> {
    let hub = Hub::new(fetcher, wanted, is_cancelled)?;
    if let Some(file) = &wanted.file {
        return hub.fetch(file);
    }
    let files = files_of_model(hub.list()?).map_err(FetchError::Refused)?;
    let mut fetched = Vec::new();
    for file in &files {
        fetched.push(hub.fetch(file)?);
    }
    let (Some(file), Some(path)) = (files.last(), fetched.last()) else {
        return Err(FetchError::Refused("the repository is empty".to_owned()));
    };
    let snapshot = path.ancestors().nth(file.split('/').count()).unwrap_or(path);
    let (model, name) = match files.len() {
        1 => (path.clone(), file.as_str()),
        _ => (snapshot.to_owned(), ""),
    };
    hub.in_cache(fs::write(snapshot.join(COMPLETE), name))?;
    Ok(model)
}

/// A repository, as it is asked.
struct Hub<'a> {
    fetcher: &'a Fetcher,
    wanted: &'a HubFile,
    is_cancelled: &'a dyn Fn() -> bool,
    api: Api,
}

/// What a hub tells of a file.
struct Facts {
    etag: String,
    size: u64,
}

impl<'a> Hub<'a> {
    fn new(
        fetcher: &'a Fetcher,
        wanted: &'a HubFile,
        is_cancelled: &'a dyn Fn() -> bool,
    ) -> Result<Self, FetchError> {
        let mut builder = ApiBuilder::from_cache(cache(fetcher))
            .with_token(token())
            .with_retries(RETRIES)
            .with_user_agent("met-host", env!("CARGO_PKG_VERSION"));
        if let Some(endpoint) = &fetcher.hub_endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        let api = builder
            .build()
            .map_err(|e| FetchError::Unreachable(e.to_string()))?;
        Ok(Self {
            fetcher,
            wanted,
            is_cancelled,
            api,
        })
    }

    /// The names of all files.
    fn list(&self) -> Result<Vec<String>, FetchError> {
        let repo = self.repo();
        let asked = watched(ANSWER_WITHIN, || 0, self.is_cancelled, move || repo.info());
        let info = self.outcome(asked, "")?;
        Ok(info.siblings.into_iter().map(|s| s.rfilename).collect())
    }

    /// Fetches one file, and checks it.
    fn fetch(&self, file: &str) -> Result<PathBuf, FetchError> {
        let facts = self.facts(file)?;
        let blob = cache(self.fetcher).repo(repo(self.wanted)).blob_path(&facts.etag);
        let part = blob.with_extension("part");
        if fs::metadata(&part).is_ok_and(|m| m.len() >= facts.size) {
            // A transfer that ended before it was given its name: there is no rest to ask for.
            self.in_cache(fs::remove_file(&part))?;
        }
        let meter = Meter::new(self.fetcher.reporting.clone(), file);
        let (moved, told, name, repo) = (meter.clone(), meter.clone(), file.to_owned(), self.repo());
        let fetched = watched(
            STALL,
            move || moved.done(),
            self.is_cancelled,
            move || repo.download_with_progress(&name, told),
        );
        meter.finish();
        if fetched.is_err() {
            meter.stop();
        }
        let pointer = self.outcome(fetched, file)?;
        let is_told = digest::is_sha256(&facts.etag).then_some(&facts.etag);
        if let Some(expected) = self.wanted.sha256.as_ref().or(is_told) {
            let checked = digest::check(self.in_cache(digest::sha256(&pointer))?, expected);
            if checked.is_err() {
                self.in_cache(fs::remove_file(&pointer))?;
                self.in_cache(fs::remove_file(&blob))?;
            }
            checked?;
        }
        Ok(pointer)
    }

    fn facts(&self, file: &str) -> Result<Facts, FetchError> {
        let (api, address) = (self.api.clone(), self.repo().url(file));
        let asked = watched(
            ANSWER_WITHIN,
            || 0,
            self.is_cancelled,
            move || api.metadata(&address),
        );
        let metadata = self.outcome(asked, file)?;
        // Both become names of files.
        let is_name = |text: &str| is_relative_path(text) && !text.contains('/');
        if !is_name(metadata.etag()) || !is_name(metadata.commit_hash()) {
            return Err(FetchError::Refused(format!("the hub describes {file} oddly")));
        }
        Ok(Facts {
            etag: metadata.etag().to_owned(),
            size: metadata.size() as u64,
        })
    }

    fn repo(&self) -> ApiRepo {
        self.api.repo(repo(self.wanted))
    }

    fn outcome<T>(&self, outcome: Result<Result<T, ApiError>, Lost>, file: &str) -> Result<T, FetchError> {
        match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(e)) => Err(told(e, &self.wanted.repository, file)),
            Err(Lost::Stalled) => Err(FetchError::Unreachable("the hub does not answer".to_owned())),
            Err(Lost::Cancelled) => Err(FetchError::Cancelled),
            Err(Lost::Panicked) => Err(FetchError::Refused("the hub's answer makes no sense".to_owned())),
        }
    }

    fn in_cache<T>(&self, result: io::Result<T>) -> Result<T, FetchError> {
        result.map_err(|e| Cache::new(&self.fetcher.cache).unusable(e))
    }
}

fn cache(fetcher: &Fetcher) -> hf_hub::Cache {
    hf_hub::Cache::new(Cache::new(&fetcher.cache).of_hub())
}

fn repo(wanted: &HubFile) -> Repo {
    Repo::with_revision(
        wanted.repository.clone(),
        RepoType::Model,
        wanted.revision.clone(),
    )
}

/// The user's token, where there is one: from `HF_TOKEN`, or as the hub's own tools keep it.
fn token() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let home = variable("HF_HOME").or_else(|| Some(variable("HOME")? + "/.cache/huggingface"));
    variable("HF_TOKEN").or_else(|| {
        let text = fs::read_to_string(Path::new(&home?).join("token")).ok()?;
        Some(text.trim().to_owned()).filter(|t| !t.is_empty())
    })
}

/// The files that make a model, in a repository where none was named.
fn files_of_model(names: Vec<String>) -> Result<Vec<String>, String> {
    const OF_A_FOLDER: [&str; 5] = ["json", "safetensors", "model", "txt", "jinja"];
    let has = |name: &str, extension: &str| Path::new(name).extension().is_some_and(|e| e == extension);
    let names: Vec<String> = names.into_iter().filter(|n| is_relative_path(n)).collect();
    let quantised: Vec<&String> = names.iter().filter(|n| has(n, "gguf")).collect();
    match quantised.as_slice() {
        [only] => return Ok(vec![(*only).clone()]),
        [] => {}
        several => {
            let some: Vec<&str> = several.iter().take(8).map(|n| n.as_str()).collect();
            return Err(format!(
                "the repository has several models; name one of {}",
                some.join(", ")
            ));
        }
    }
    if !names.iter().any(|n| has(n, "safetensors")) {
        return Err("the repository has neither a GGUF file nor safetensors".to_owned());
    }
    let files: Vec<String> = names
        .into_iter()
        .filter(|n| !n.contains('/') && OF_A_FOLDER.iter().any(|e| has(n, e)))
        .collect();
    match files.len() {
        0..=MOST_FILES => Ok(files),
        many => Err(format!(
            "the repository has {many} files, more than a model should"
        )),
    }
}

/// A client error in our words.
fn told(error: ApiError, repository: &str, file: &str) -> FetchError {
    let status = match &error {
        ApiError::RequestError(e) => match **e {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        _ => None,
    };
    match status {
        Some(404) => FetchError::Refused(format!("{repository} has no {file} on the hub")),
        Some(401 | 403) => FetchError::Refused(format!(
            "the hub refuses {repository}; it does not exist, or HF_TOKEN must hold a token that may read it"
        )),
        Some(status @ 400..500) => FetchError::Refused(format!("the hub answers {status}")),
        _ => FetchError::Unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Result<Vec<String>, String> {
        files_of_model(names.iter().map(|n| (*n).to_owned()).collect())
    }

    #[test]
    fn a_model_is_one_gguf_or_the_files_beside_safetensors() {
        assert_eq!(
            files(&["README.md", "m.gguf", "config.json"]).unwrap(),
            ["m.gguf"]
        );
        let folder = [
            "config.json",
            "a.safetensors",
            "README.md",
            "onnx/x.json",
            "tokenizer.json",
            "../x.json",
        ];
        assert_eq!(
            files(&folder).unwrap(),
            ["config.json", "a.safetensors", "tokenizer.json"]
        );
        assert!(
            files(&["a.gguf", "b.gguf"])
                .unwrap_err()
                .contains("name one of a.gguf, b.gguf")
        );
        assert!(files(&["README.md"]).is_err());
    }
}
