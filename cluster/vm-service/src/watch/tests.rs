use super::*;
use tokio_stream::StreamExt;
use tonic::Code;

fn vm(epoch: u32) -> Vm {
    Vm { placement_epoch: epoch, ..Vm::default() }
}

async fn next(watch: &mut Watch) -> (Kind, String) {
    let WatchVmResponse { kind, resume_token } = watch.next().await.unwrap().unwrap();
    (kind.unwrap(), resume_token)
}

#[tokio::test]
async fn watcher_gets_a_snapshot_and_each_change_once() {
    let all = Watchers::new();
    let mut watch = all.watch(vm(1), "", None).unwrap();
    assert_eq!(next(&mut watch).await.0, Kind::Snapshot(vm(1)));
    for epoch in [1, 2, 2, 3] {
        all.publish(vm(epoch));
    }
    assert_eq!(next(&mut watch).await.0, Kind::Change(vm(2)));
    let (change, token) = next(&mut watch).await;
    assert_eq!(change, Kind::Change(vm(3)));
    drop(watch);
    assert_eq!(all.count(), 0);

    // Nothing has changed since: nothing is told.
    let mut again = all.watch(vm(3), &token, None).unwrap();
    all.publish(vm(4));
    all.publish(vm(5));
    assert_eq!(next(&mut again).await.0, Kind::Change(vm(4)));
    // What has changed since comes at once.
    let mut late = all.watch(vm(5), &token, None).unwrap();
    assert_eq!(next(&mut late).await.0, Kind::Change(vm(5)));
    let foreign = Watchers::new().token(1);
    for wrong in ["x", "0-1", &foreign, &all.token(99)] {
        let error = all.watch(vm(5), wrong, None).unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange, "{wrong}");
    }
}

#[tokio::test(start_paused = true)]
async fn quiet_watch_has_bookmarks() {
    let all = Watchers::new();
    let mut watch = all.watch(vm(1), "", Some(Duration::from_millis(1))).unwrap();
    let (_, token) = next(&mut watch).await;
    let start = tokio::time::Instant::now();
    let (kind, resume) = next(&mut watch).await;
    assert_eq!((kind, resume), (Kind::Bookmark(Bookmark {}), token));
    assert_eq!(start.elapsed(), BOOKMARKS_MIN);
}

#[tokio::test]
async fn slow_watcher_is_ended_and_holds_nobody_up() {
    let all = Watchers::new();
    let mut slow = all.watch(vm(0), "", None).unwrap();
    let mut quick = all.watch(vm(0), "", None).unwrap();
    assert_eq!(next(&mut quick).await.0, Kind::Snapshot(vm(0)));
    for epoch in 1..1000 {
        all.publish(vm(epoch));
        assert_eq!(next(&mut quick).await.0, Kind::Change(vm(epoch)));
    }
    assert_eq!(all.count(), 1);
    let mut read = 0;
    let error = loop {
        match slow.next().await.unwrap() {
            Ok(_) => read += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((read, error.code()), (QUEUE_MAX, Code::Aborted));
    assert!(slow.next().await.is_none());
}

#[tokio::test]
async fn watchers_are_bounded_and_make_room() {
    let all = Watchers::new();
    let mut inside = Vec::new();
    let mut refused = 0;
    for _ in 0..10_000 {
        match all.watch(vm(1), "", None) {
            Ok(watch) => inside.push(watch),
            Err(error) => {
                assert_eq!(error.code(), Code::ResourceExhausted);
                refused += 1;
            }
        }
    }
    assert_eq!((inside.len(), refused), (WATCHERS_MAX, 10_000 - WATCHERS_MAX));
    for epoch in 2..200 {
        all.publish(vm(epoch));
    }
    // None of them has read: no more than the queues is kept, and nobody is left.
    assert!(inside.iter().all(|watch| watch.items.len() <= QUEUE_MAX));
    assert_eq!(all.count(), 0);
    drop(inside);
    assert!(all.watch(vm(200), "", None).is_ok());
}

#[tokio::test]
async fn end_of_the_process_ends_watches() {
    let all = Watchers::new();
    let mut watch = all.watch(vm(1), "", None).unwrap();
    all.end();
    assert_eq!(next(&mut watch).await.0, Kind::Snapshot(vm(1)));
    assert!(watch.next().await.is_none());
    assert!(all.watch(vm(1), "", None).is_err());
}
