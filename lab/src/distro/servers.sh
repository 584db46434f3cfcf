#!/bin/sh
# Runs inside the new root file system (chroot) behind inside.sh: what the system with servers has beyond the
# other one. None of the servers starts with the system; whoever measures one starts it. Their data is made here, once,
# where that is fast.
# The file is part of the recipe: a change builds the image anew.
set -eu

# Servers that run here for a while have what mmdebstrap waits to see closed: they must not outlive this script.
server=
version=$(ls /etc/postgresql)
end() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    pg_ctlcluster --skip-systemctl-redirect -m immediate "$version" main stop 2>/dev/null || true
}
trap end EXIT

# --- none of them runs unasked ---
for unit in mariadb postgresql redis-server "$(basename "$(ls -d /lib/systemd/system/php*-fpm.service)")" \
    phpsessionclean.timer; do
    systemctl disable "$unit"
done
# The unit of all clusters starts nothing by itself; its generator would have each cluster start with the system.
echo manual >"/etc/postgresql/$version/main/start.conf"

# --- PHP: nginx at port 8080, four workers ---
cat >/etc/nginx/php.conf <<'END'
server {
    listen 8080;
    root /srv/php;
    location / {
        include fastcgi_params;
        fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
        fastcgi_pass unix:/run/php/tessera.sock;
        fastcgi_read_timeout 3600s;
    }
}
END
sed -i 's|^http {$|&\n    include /etc/nginx/php.conf;|' /etc/nginx/nginx.conf
grep -q php.conf /etc/nginx/nginx.conf
nginx -t
pool=$(ls -d /etc/php/*/fpm/pool.d)/www.conf
cat >"$pool" <<'END'
[www]
user = www-data
group = www-data
listen = /run/php/tessera.sock
listen.owner = www-data
pm = static
pm.max_children = 4
php_admin_value[max_execution_time] = 0
END
# A page as a shop has it: a row by its key, some more by an index, and work with what was found.
mkdir -p /srv/php
cat >/srv/php/page.php <<'END'
<?php
// ?rounds=N: how much work
$rounds = (int) ($_GET['rounds'] ?? 0);
mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
$db = new mysqli('p:localhost', 'www-data', null, 'shop');
$id = random_int(1, 1000);
$row = $db->query("SELECT name, price FROM item WHERE id = $id")->fetch_assoc();
$like = $db->query("SELECT id, name FROM item WHERE kind = $id % 50 LIMIT 10")->fetch_all();
$hash = $row['name'];
for ($i = 0; $i < $rounds; $i++) {
    $hash = md5($hash);
}
header('Content-Type: text/plain');
printf("%-32s %10d %2d\n", $hash, $row['price'], count($like));
END

# --- MariaDB: small, over its socket only ---
cat >/etc/mysql/mariadb.conf.d/99-tessera.cnf <<'END'
[mariadbd]
skip-networking
innodb_buffer_pool_size = 16M
innodb_log_file_size = 16M
performance_schema = OFF
max_connections = 16
table_open_cache = 64
END
# Debian looks through all tables after each start.
printf '#!/bin/sh\nexit 0\n' >/etc/mysql/debian-start
install -d -o mysql -g mysql /run/mysqld
mariadbd --user=mysql >/tmp/mariadbd.log 2>&1 &
server=$!
i=0
until mariadb-admin --silent ping 2>/dev/null; do
    i=$((i + 1))
    [ $i -lt 600 ] && kill -0 $server || { cat /tmp/mariadbd.log >&2; exit 1; }
    sleep 0.1
done
mariadb <<'END'
CREATE DATABASE shop;
CREATE USER 'www-data'@'localhost' IDENTIFIED VIA unix_socket;
GRANT SELECT ON shop.* TO 'www-data'@'localhost';
CREATE TABLE shop.item (id INT PRIMARY KEY, kind INT NOT NULL, name VARCHAR(40) NOT NULL, price INT NOT NULL, KEY (kind));
INSERT INTO shop.item SELECT seq, seq MOD 50, CONCAT('item ', seq), 100 + seq * 7 MOD 900 FROM shop.seq_1_to_1000;
END
mariadb-admin shutdown
wait $server
server=
rm /tmp/mariadbd.log

# --- PostgreSQL: the tables of pgbench at its smallest scale ---
cat >"/etc/postgresql/$version/main/conf.d/tessera.conf" <<'END'
shared_buffers = 32MB
autovacuum = off
checkpoint_timeout = 1h
listen_addresses = ''
END
pg_ctlcluster --skip-systemctl-redirect "$version" main start
su postgres -c 'createdb bench'
su postgres -c "/usr/lib/postgresql/$version/bin/pgbench -i -q -s 1 bench"
pg_ctlcluster --skip-systemctl-redirect -m fast "$version" main stop

# --- Redis: in memory only ---
printf 'save ""\nappendonly no\nbind 127.0.0.1\ndaemonize no\n' >/etc/redis/tessera.conf

# --- a file to compress: text as logs have it, 64 MB ---
awk 'BEGIN { srand(7); for (i = 0; i < 900000; i++)
    printf "%d host%d service[%d]: request %d took %d us, status %d\n",
        1700000000 + i, rand() * 20, rand() * 30000, rand() * 1000000, rand() * 90000, 200 + rand() * 5 }' |
    head -c 67108864 >/srv/log.txt

# --- and one that takes 13 to 20 times as long with `pigz -9`: four letters at random, 64 MB ---
letters=$(printf 'ACGT%.0s' $(seq 64))
openssl enc -aes-128-ctr -K 7 -iv 7 </dev/zero 2>/dev/null | LC_ALL=C tr '\000-\377' "$letters" | fold -w 60 |
    head -c 67108864 >/srv/genes.txt

# --- a project to make: each file is sorted and packed ---
mkdir -p /srv/project
split -n l/24 -d --additional-suffix=.part /srv/log.txt /srv/project/x
cat >/srv/project/Makefile <<'END'
all: $(patsubst %.part,%.done,$(wildcard *.part))
%.done: %.part
	head -c 400000 $< | sort -k 4 | gzip -1 | sha256sum >/tmp/$@
.PHONY: all
END

# --- a package of a function ---
mkdir /tmp/function
split -n l/8 -d /srv/project/x00.part /tmp/function/part
tar -czf /srv/function.tar.gz -C /tmp/function .
rm -rf /tmp/function /var/log/*
mkdir -p /var/log/nginx
