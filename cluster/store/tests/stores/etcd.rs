//! What can happen to a store in etcd: etcd is killed, an endpoint is dead, somebody else has written, the connection is encrypted.

use std::time::Duration;

use needs::Need;
use needs::etcd::{EtcdProcess, etcd_program};
use store::request::{self, Attempt, Content, RequestId, Settled};
use store::{
    CommitError, EtcdOptions, EtcdStore, EtcdTls, Limits, Prefix, RenewError, Revision, Store, Txn,
    WatchError, keep,
};

use crate::histories;
use crate::setup::{Etcd, PATIENCE, Setup, runtime};
use crate::suite::{candidate, commit, heard, key};

fn begin() -> Option<Etcd> {
    Etcd::begin(Limits::default())
}

/// Commits go on until one is through again.
async fn insist(store: &impl Store, name: &str) -> Revision {
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE {
        match store.commit(Txn::unfenced().put(key(name), *b"1")).await {
            Ok(revision) => return revision,
            Err(CommitError::Unavailable(_) | CommitError::Unknown(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("etcd does not come back")
}

/// etcd is killed and started again, several times, while clients work: one order explains all, and what was acknowledged is there.
#[test]
fn histories_are_linearisable_though_etcd_is_killed() {
    let Some(mut setup) = begin() else { return };
    let runtime = runtime();
    let mut unknown = 0;
    for round in 0..4 {
        let name = format!("killed{round}");
        let clients = (0..4).map(|_| setup.client()).collect();
        let work = runtime.spawn(async move { histories::run(clients, 150, &name).await });
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(fastrand::u64(50..250)));
            setup.process.kill();
            std::thread::sleep(Duration::from_millis(fastrand::u64(..100)));
            setup.process.restart();
        }
        let history = runtime.block_on(work).unwrap();
        unknown += history.counts().1;
        runtime.block_on(history.check(&setup.client()));
    }
    println!("{unknown} commits had an unknown result");
}

#[test]
fn unknown_commits_are_settled_when_etcd_is_back() {
    let Some(mut setup) = begin() else { return };
    let runtime = runtime();
    let store = setup.client();
    for n in 0..6_u8 {
        let attempt = Attempt::first(RequestId([n; 16]), Content::of(&[n]));
        let (client, tried) = (setup.client(), attempt.clone());
        // Connected before etcd goes.
        runtime.block_on(client.get(&key("x"))).unwrap();
        let object = key(&format!("vms/{n}"));
        let txn = Txn::unfenced().put(object.clone(), [n]);
        let work =
            runtime.spawn(async move { request::attempt(&client, &tried, txn, [n], 0).await });
        std::thread::sleep(Duration::from_micros(fastrand::u64(..2000)));
        setup.process.kill();
        let result = runtime.block_on(work).unwrap();
        setup.process.restart();
        runtime.block_on(async {
            insist(&store, "awake").await;
            let settled = request::settle(&store, &attempt, 0).await.unwrap();
            let there = store.get(&object).await.unwrap().entry.is_some();
            assert_eq!(matches!(settled, Settled::Happened { .. }), there, "{settled:?}");
            if result.is_ok() {
                assert!(there, "it was acknowledged");
            }
        });
    }
}

#[test]
fn watcher_goes_on_where_it_was_when_etcd_is_back() {
    let Some(mut setup) = begin() else { return };
    let runtime = runtime();
    let store = setup.client();
    let mut watcher = runtime.block_on(async {
        let begun = commit(&store, Txn::unfenced().put(key("a"), *b"1")).await;
        store.watch(&Prefix::all(), begun).await.unwrap()
    });
    let mut written = Vec::new();
    for _ in 0..3 {
        written.push(runtime.block_on(insist(&store, "a")));
        setup.process.kill();
        std::thread::sleep(Duration::from_millis(200));
        setup.process.restart();
        written.push(runtime.block_on(insist(&store, "b")));
    }
    // A commit whose result was unknown may be heard of, too.
    let last = *written.last().unwrap();
    let heard = runtime.block_on(async {
        let mut all = Vec::new();
        while all.last() != Some(&last) {
            all.push(heard(&mut watcher).await.unwrap().revision);
        }
        all
    });
    assert!(heard.windows(2).all(|pair| pair[0] < pair[1]), "{heard:?}");
    assert!(written.iter().all(|revision| heard.contains(revision)), "{written:?} {heard:?}");
}

#[test]
fn etcd_that_is_not_there_is_an_error_in_time() {
    let options = EtcdOptions {
        timeout: Duration::from_millis(500),
        outage_max: Duration::from_millis(200),
        ..EtcdOptions::new(vec!["http://127.0.0.1:1".to_owned()])
    };
    let store = EtcdStore::new(&options).unwrap();
    runtime().block_on(async {
        let txn = Txn::unfenced().put(key("a"), *b"1");
        let refused = store.commit(txn).await.unwrap_err();
        // Nothing was sent.
        assert!(matches!(refused, CommitError::Unavailable(_)), "{refused}");
        assert!(refused.to_string().contains("127.0.0.1:1"), "{refused}");
        assert!(store.get(&key("a")).await.is_err());
        let watcher = store.watch(&Prefix::all(), Revision::ZERO).await.map(drop);
        assert!(matches!(watcher, Err(WatchError::Unavailable(_))), "{watcher:?}");
        assert!(store.campaign(&candidate::<Etcd>("a")).await.is_err());
    });
}

#[test]
fn watcher_is_told_of_a_long_outage() {
    let Some(mut setup) = begin() else { return };
    let options = EtcdOptions {
        timeout: Duration::from_secs(2),
        outage_max: Duration::from_millis(500),
        ..EtcdOptions::new(vec![setup.process.endpoint()])
    };
    let store = EtcdStore::new(&options).unwrap();
    let runtime = runtime();
    let mut watcher = runtime.block_on(async {
        insist(&store, "a").await;
        store.watch(&Prefix::all(), Revision::ZERO).await.unwrap()
    });
    runtime.block_on(heard(&mut watcher)).unwrap();
    setup.process.kill();
    // Commits whose result was unknown may be heard of first.
    let end = loop {
        if let Err(end) = runtime.block_on(heard(&mut watcher)) {
            break end;
        }
    };
    assert!(matches!(end, WatchError::Unavailable(_)), "{end}");
}

#[test]
fn dead_endpoint_is_passed_over() {
    let Some(setup) = begin() else { return };
    let endpoints = vec!["http://127.0.0.1:1".to_owned(), setup.process.endpoint()];
    let store = EtcdStore::new(&EtcdOptions::new(endpoints)).unwrap();
    runtime().block_on(async {
        let revision = commit(&store, Txn::unfenced().put(key("a"), *b"1")).await;
        assert_eq!(store.get(&key("a")).await.unwrap().entry.unwrap().modified, revision);
        let mut watcher = store.watch(&Prefix::all(), Revision::ZERO).await.unwrap();
        assert_eq!(heard(&mut watcher).await.unwrap().revision, revision);
    });
}

#[test]
fn two_stores_of_one_etcd_do_not_meet() {
    let Some(setup) = begin() else { return };
    let store = |root: &str| {
        let root = root.to_owned();
        let options = EtcdOptions { root, ..EtcdOptions::new(vec![setup.process.endpoint()]) };
        EtcdStore::new(&options).unwrap()
    };
    let (one, other) = (store("one"), store("one2"));
    runtime().block_on(async {
        commit(&one, Txn::unfenced().put(key("a"), *b"1")).await;
        assert_eq!(other.get(&key("a")).await.unwrap().entry, None);
        assert_eq!(other.list(&Prefix::all(), 9, None).await.unwrap().entries, []);
        let first = one.campaign(&candidate::<Etcd>("a")).await.unwrap();
        let second = other.campaign(&candidate::<Etcd>("b")).await.unwrap();
        let fenced = Txn::under(first.term()).put(key("a"), *b"2");
        let refused = other.commit(fenced).await;
        assert!(matches!(refused, Err(CommitError::Deposed { .. })), "{refused:?}");
        other.resign(second).await.unwrap();
        assert_eq!(one.leader().await.unwrap().unwrap().name, "a");
    });
}

/// Operators depose a leader by deleting its key; its lease is not over then.
#[test]
fn leader_whose_key_is_deleted_notices() {
    let Some(setup) = begin() else { return };
    let store = setup.client();
    runtime().block_on(async {
        let leadership = store.campaign(&candidate::<Etcd>("a")).await.unwrap();
        store.renew(&leadership).await.unwrap();
        // "tessera/leader"
        setup.process.delete("dGVzc2VyYS9sZWFkZXI=");
        assert_eq!(store.renew(&leadership).await, Err(RenewError::Deposed(leadership.term())));
        let lost = keep(&store, &leadership).await;
        assert_eq!(lost, store::Lost::Deposed(leadership.term()));
        let fenced = Txn::under(leadership.term()).put(key("a"), *b"2");
        assert!(matches!(store.commit(fenced).await, Err(CommitError::Deposed { .. })));
    });
}

/// A certificate authority of the test, and what it has signed.
struct Authority {
    certificate: rcgen::Certificate,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).unwrap();
        Self { certificate, issuer: rcgen::Issuer::new(parameters, key) }
    }

    fn ca(&self) -> Vec<u8> {
        self.certificate.pem().into_bytes()
    }

    /// Certificate and key for a name.
    fn sign(&self, name: &str) -> (Vec<u8>, Vec<u8>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        parameters.extended_key_usages = vec![ServerAuth, ClientAuth];
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
    }
}

#[test]
fn encrypted_connection_is_to_the_right_etcd_alone() {
    if !needs::has(Need::Etcd, etcd_program()) {
        return;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let folder = crate::setup::Folder::new("tls");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (certificate, private) = authority.sign("etcd.example");
    let options = [
        ("--cert-file", file("certificate", &certificate)),
        ("--key-file", file("key", &private)),
        ("--trusted-ca-file", file("ca", &authority.ca())),
    ];
    let options = options.into_iter().flat_map(|(name, file)| [name.to_owned(), file]);
    let options = options.chain(["--client-cert-auth".to_owned()]).collect();
    let process = EtcdProcess::with(folder, "https", options);
    let right = EtcdTls {
        ca: authority.ca(),
        identity: Some(authority.sign("orchestrator")),
        server_name: Some("etcd.example".to_owned()),
    };
    let store = |tls: EtcdTls| {
        let timeout = Duration::from_secs(3);
        let endpoints = vec![process.endpoint()];
        EtcdStore::new(&EtcdOptions { tls: Some(tls), timeout, ..EtcdOptions::new(endpoints) })
            .unwrap()
    };
    runtime().block_on(async {
        insist(&store(right.clone()), "a").await;
        let refused = |tls: EtcdTls| {
            let store = store(tls);
            async move {
                let get = store.get(&key("a")).await;
                get.expect_err("it must be refused").to_string()
            }
        };
        let wrong_name = Some("other.example".to_owned());
        let error = refused(EtcdTls { server_name: wrong_name, ..right.clone() }).await;
        assert!(error.contains("certificate"), "{error}");
        let error = refused(EtcdTls { ca: stranger.ca(), ..right.clone() }).await;
        assert!(error.contains("certificate"), "{error}");
        refused(EtcdTls { identity: None, ..right.clone() }).await;
        refused(EtcdTls { identity: Some(stranger.sign("orchestrator")), ..right.clone() }).await;
        let private = Some((certificate.clone(), b"no key".to_vec()));
        let options = EtcdOptions {
            tls: Some(EtcdTls { identity: private, ..right }),
            ..EtcdOptions::new(vec![process.endpoint()])
        };
        let error = EtcdStore::new(&options).map(drop).unwrap_err().to_string();
        assert!(error.contains("certificates"), "{error}");
    });
}
