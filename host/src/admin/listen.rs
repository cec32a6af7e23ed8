//! Where operators connect: a Unix socket that only the user can open, or a TCP address with a token.

use crate::http;
use anyhow::{Context, Result, bail};
use axum::Router;
use std::{
    future::Future,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    str::FromStr,
};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// An address as `--admin` takes it: `unix:PATH` or `ADDR:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address; the token of [`AdminListener::TOKEN`] is asked for.
    Tcp(SocketAddr),
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("unix: wants a path, as in unix:/run/met-host.sock".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text
                .parse()
                .map(Self::Tcp)
                .map_err(|_| format!("'{text}' is neither unix:PATH nor ADDR:PORT")),
        }
    }
}

impl std::fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// The socket of a server on `port` that was given no other. One a port, so that servers beside each other don't meet.
pub(crate) fn default_path(port: u16) -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // An empty one is none, and whoever stands elsewhere would not find a relative one.
    let folder = folder.filter(|folder| folder.is_absolute());
    folder
        .unwrap_or_else(std::env::temp_dir)
        .join(format!("met-host-{port}.sock"))
}

/// The bound listener.
pub struct AdminListener {
    socket: Socket,
    token: Option<String>,
}

enum Socket {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

/// Removed with the listener, unless another server's has taken its place.
struct SocketFile {
    path: PathBuf,
    /// Its device and number there.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            identity: Self::identity(path),
        }
    }

    fn identity(path: &Path) -> Option<(u64, u64)> {
        let found = std::fs::symlink_metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && Self::identity(&self.path) == self.identity {
            // Somebody may have removed it just now.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl AdminListener {
    /// The environment variable with the token that a TCP listener asks for.
    pub const TOKEN: &str = "MET_ADMIN_TOKEN";

    /// Binds `address`. A socket file that no process listens on any more is replaced.
    pub async fn bind(address: &AdminAddress) -> Result<Self> {
        match address {
            AdminAddress::Tcp(address) => {
                let token = std::env::var(Self::TOKEN).ok().filter(|token| !token.is_empty());
                let Some(token) = token else {
                    bail!(
                        "an operators' listener on TCP needs a token: set {}, or use unix:PATH",
                        Self::TOKEN
                    );
                };
                let listener = TcpListener::bind(address)
                    .await
                    .with_context(|| format!("can't listen on {address}"))?;
                Ok(Self {
                    socket: Socket::Tcp(listener),
                    token: Some(token),
                })
            }
            AdminAddress::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)
                    .with_context(|| format!("can't listen on {}; give another --admin", path.display()))?;
                let file = SocketFile::of(path);
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
                    .with_context(|| format!("can't keep others from {}", path.display()))?;
                Ok(Self {
                    socket: Socket::Unix(listener, file),
                    token: None,
                })
            }
        }
    }

    /// Where it listens, as `--admin` takes it.
    pub fn address(&self) -> Result<String> {
        Ok(match &self.socket {
            Socket::Unix(_, file) => format!("unix:{}", file.path.display()),
            Socket::Tcp(listener) => listener.local_addr()?.to_string(),
        })
    }

    /// Serves the router that `make` gives for the token, until `shutdown` completes.
    pub async fn serve(
        self,
        make: impl FnOnce(Option<String>) -> Router,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let router = make(self.token);
        match self.socket {
            // Whoever has no token can still connect: with the bounds of the public listener.
            Socket::Tcp(listener) => http::serve(listener, router, shutdown).await,
            Socket::Unix(listener, file) => {
                axum::serve(listener, router)
                    .with_graceful_shutdown(shutdown)
                    .await?;
                drop(file);
            }
        }
        Ok(())
    }
}

async fn remove_stale(path: &Path) -> Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        bail!(
            "{} is no socket, so it is not replaced; give another --admin",
            path.display()
        );
    }
    if UnixStream::connect(path).await.is_ok() {
        bail!(
            "another server listens on {}; give this one another --admin",
            path.display()
        );
    }
    std::fs::remove_file(path).with_context(|| format!("{} is in the way", path.display()))
}
