#!/bin/sh
# Runs inside the new root file system (chroot) once all packages are there. Whatever waits, polls or
# writes without need is turned off: this system boots where a disk read may cross two emulated hosts.
# The file is part of the recipe: a change builds the image anew.
set -eu

# --- who and where ---
echo tessera >/etc/hostname
printf '127.0.0.1 localhost tessera\n::1 localhost\n' >/etc/hosts
echo 'LABEL=tessera / ext4 rw,noatime 0 0' >/etc/fstab
echo LANG=C.UTF-8 >/etc/default/locale
cat >/etc/systemd/network/10-first.network <<'END'
[Match]
Name=e*
Type=ether
[Network]
Address=192.168.77.2/24
Gateway=192.168.77.1
LinkLocalAddressing=no
IPv6AcceptRA=no
ConfigureWithoutCarrier=yes
END
systemctl enable systemd-networkd.service

# --- logging in: as root, with the key made at build; a password does not exist ---
# The consoles ask for a name and then refuse, which is what shows that the system is up.
install -d -m 0700 /root/.ssh
install -m 0600 /tmp/tessera/id_ed25519.pub /root/.ssh/authorized_keys
cat >/etc/ssh/sshd_config.d/tessera.conf <<'END'
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
HostKey /etc/ssh/ssh_host_ed25519_key
UseDNS no
PrintMotd no
PrintLastLog no
END
rm -f /etc/ssh/ssh_host_rsa_key* /etc/ssh/ssh_host_ecdsa_key*
[ -s /etc/ssh/ssh_host_ed25519_key.pub ]
# systemd's own generator starts a getty on each console= and on a virtio console, where there is one.

# --- nginx: one server with a worker on each CPU, and one server for each CPU alone ---
rm -f /etc/nginx/sites-enabled/default
cat >/etc/nginx/tessera-http.conf <<'END'
include /etc/nginx/mime.types;
default_type application/octet-stream;
access_log off;
sendfile on;
tcp_nopush on;
tcp_nodelay on;
keepalive_timeout 600;
keepalive_requests 100000000;
open_file_cache max=64 inactive=600s;
open_file_cache_valid 600s;
server_tokens off;
END
cat >/etc/nginx/nginx.conf <<'END'
user www-data;
worker_processes auto;
worker_cpu_affinity auto;
pid /run/nginx.pid;
error_log stderr;
events { worker_connections 512; }
http {
    include /etc/nginx/tessera-http.conf;
    server { listen 80 default_server; root /var/www; }
}
END
# The package's unit tests its configuration before each start; that was done here.
nginx -t
mkdir -p /etc/systemd/system/nginx.service.d
printf '[Service]\nExecStartPre=\n' >/etc/systemd/system/nginx.service.d/quick.conf
cat >/etc/systemd/system/nginx-cpu@.service <<'END'
[Unit]
Description=nginx on CPU %i alone
After=network.target
[Service]
Type=exec
ExecStart=/usr/sbin/nginx -c /run/nginx-cpu/%i.conf
KillSignal=SIGQUIT
CPUAffinity=%i
END
mkdir -p /etc/systemd/system-generators
cat >/etc/systemd/system-generators/nginx-cpu <<'END'
#!/bin/sh
# One nginx-cpu@N.service for each CPU N, on port 8000 + N.
wants=$1/multi-user.target.wants
mkdir -p "$wants" /run/nginx-cpu
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
    number=${cpu##*cpu}
    ln -s /etc/systemd/system/nginx-cpu@.service "$wants/nginx-cpu@$number.service"
    cat >"/run/nginx-cpu/$number.conf" <<CONF
daemon off;
user www-data;
worker_processes 1;
pid /run/nginx-cpu/$number.pid;
error_log stderr;
events { worker_connections 512; }
http {
    include /etc/nginx/tessera-http.conf;
    server { listen $((8000 + number)); root /var/www; }
}
CONF
done
END
chmod 755 /etc/systemd/system-generators/nginx-cpu

# --- what must not run or wait ---
for unit in \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    e2scrub_reap.service systemd-networkd-wait-online.service systemd-tmpfiles-clean.timer \
    systemd-logind.service systemd-pstore.service systemd-rfkill.service systemd-rfkill.socket \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount \
    sys-fs-fuse-connections.mount dev-hugepages.mount dev-mqueue.mount \
    proc-sys-fs-binfmt_misc.automount modprobe@.service getty-static.service getty@tty1.service \
    systemd-binfmt.service systemd-update-utmp.service systemd-update-utmp-runlevel.service \
    systemd-ask-password-wall.path systemd-ask-password-console.path systemd-hwdb-update.service \
    systemd-journal-flush.service systemd-machine-id-commit.service systemd-network-generator.service \
    kmod-static-nodes.service; do
    ln -sf /dev/null "/etc/systemd/system/$unit"
done
systemctl set-default multi-user.target
systemctl enable ssh.service nginx.service
mkdir -p /etc/systemd/journald.conf.d /etc/systemd/system.conf.d
printf '[Journal]\nStorage=volatile\nRuntimeMaxUse=8M\nForwardToSyslog=no\n' \
    >/etc/systemd/journald.conf.d/tessera.conf
# A slow host is not a failure.
printf '[Manager]\nDefaultTimeoutStartSec=600s\nDefaultTimeoutStopSec=120s\nDefaultDeviceTimeoutSec=600s\n' \
    >/etc/systemd/system.conf.d/tessera.conf
echo 'kernel.printk = 4 4 1 7' >/etc/sysctl.d/tessera.conf

# Modules that udev would load because of what the processor or the board can do. Each is some
# hundred pages of kernel memory and page tables that every slice gets to know of.
for module in \
    kvm kvm_amd kvm_intel intel_rapl_msr intel_rapl_common ahci libahci libata ata_piix \
    crct10dif_pclmul crc32_pclmul crc32c_intel ghash_clmulni_intel sha512_ssse3 sha256_ssse3 \
    sha1_ssse3 aesni_intel polyval_clmulni evdev serio_raw button qemu_fw_cfg i2c_i801 lpc_ich \
    pcspkr ip_tables autofs4 psmouse edac_mce_amd amd64_edac ccp; do
    echo "blacklist $module"
done >/etc/modprobe.d/tessera.conf

# --- the initial RAM disk: only what finds the root file system ---
sed -i 's/^MODULES=.*/MODULES=list/; s/^COMPRESS=.*/COMPRESS=zstd/' \
    /etc/initramfs-tools/initramfs.conf
printf '%s\n' virtio_pci virtio_blk virtio_rng ext4 >>/etc/initramfs-tools/modules
# No udev in it: devtmpfs has the disk's name as soon as the driver found it. Scripts of these names
# take the place of udev's, whose second one also hands /dev over.
scripts=/etc/initramfs-tools/scripts
printf '#!/bin/sh\nexit 0\n' >"$scripts/init-top/udev"
cat >"$scripts/init-bottom/udev" <<'END'
#!/bin/sh
[ "${1:-}" = prereqs ] && exit 0
mount -n -o move /dev "${rootmnt:?}/dev" || mount -n --move /dev "${rootmnt}/dev"
END
chmod 755 "$scripts/init-top/udev" "$scripts/init-bottom/udev"
cat >/etc/initramfs-tools/hooks/zz-tessera <<'END'
#!/bin/sh
[ "${1:-}" = prereqs ] && exit 0
rm -rf "$DESTDIR"/usr/lib/udev "$DESTDIR"/lib/udev "$DESTDIR"/usr/bin/udevadm "$DESTDIR"/bin/udevadm \
    "$DESTDIR"/usr/lib/systemd/systemd-udevd "$DESTDIR"/lib/systemd/systemd-udevd "$DESTDIR"/etc/udev
END
chmod 755 /etc/initramfs-tools/hooks/zz-tessera
version=$(ls /lib/modules)
update-initramfs -u -k "$version"

# --- leave nothing that differs from build to build without need, and nothing to update at boot ---
systemd-machine-id-setup --commit >/dev/null 2>&1 || true
[ -s /etc/machine-id ] || tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
rm -rf /var/log/* /var/cache/apt/*.bin
mkdir -p /var/log/nginx
touch /etc/.updated /var/.updated
