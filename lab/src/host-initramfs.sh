#!/bin/busybox sh
# First stage of a lab host: put the machine's root file system, read-only, under a throw-away layer
# and go there. Runs from the initramfs with nothing but busybox.
b=/bin/busybox

give_up() {
    echo "tessera-lab: $1"
    $b poweroff -f
}

share() { # TAG FOLDER OPTIONS
    $b mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2" ||
        give_up "cannot mount the share '$1'"
}

$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
while read -r module; do
    $b insmod "/modules/$module" || give_up "cannot load $module"
done </modules/order

share root /lower ro,cache=loose
$b mount -t tmpfs -o size=60% tmpfs /layer
$b mkdir /layer/upper /layer/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work overlay /new ||
    give_up "cannot put a writable layer over the root file system"
for folder in proc sys dev; do $b mount -o move "/$folder" "/new/$folder"; done

$b mkdir -p /new/job /new/shared /new/live
share job /new/job rw,cache=none
share shared /new/shared rw,cache=none
share live /new/live ro,cache=none
$b mount -t tmpfs tmpfs /new/run
$b mkdir /new/run/tessera
$b cp /host-init.sh /new/run/tessera/init
exec $b switch_root /new /bin/bash /run/tessera/init
