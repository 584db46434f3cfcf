#!/bin/bash
# Second stage of a lab host: process 1 on the machine's root file system. It sets up what a plain
# system would have and then waits for the agent; bash also reaps orphans.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

for word in $(</proc/cmdline); do
    case $word in
    tessera.host=*) host=${word#*=} ;;
    tessera.address=*) address=${word#*=} ;;
    tessera.kernel=*) kernel=${word#*=} ;;
    tessera.agent=*) agent=${word#*=} ;;
    tessera.disks=*) disks=${word#*=} ;;
    tessera.rdma=*) rdma=${word#*=} ;;
    esac
done

mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
hostname "host-$host"
ulimit -n 65536

# Modules come straight out of the unpacked package; the link also lets the kernel load them itself.
release=$(uname -r)
mkdir -p /lib/modules
ln -sfn "$kernel/lib/modules/$release" "/lib/modules/$release"
modprobe kvm_amd || echo "tessera-lab: kvm_amd does not load"
if [ "$disks" != 0 ]; then
    modprobe virtio_blk || echo "tessera-lab: virtio_blk does not load"
fi

ip link set lo up
if [ -n "$address" ]; then
    ip address add "$address" dev eth0
    ip link set eth0 mtu 9000 up
fi
if [ -n "$rdma" ]; then
    # The kernel asks for further modules (checksums) by name, which the link above makes possible.
    for module in ib_uverbs rdma_ucm rdma_rxe; do
        modprobe "$module" || echo "tessera-lab: $module does not load"
    done
    rdma link add "$rdma" type rxe netdev eth0 || echo "tessera-lab: no soft-RoCE on eth0"
fi

"$agent" lab-agent
echo "tessera-lab: the agent ended with $?"
echo o >/proc/sysrq-trigger
sleep 10
