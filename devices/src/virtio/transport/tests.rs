use super::*;
use crate::virtio::F_EVENT_IDX;
use proptest::prelude::*;

const OFFERED: u64 = F_VERSION_1 | F_EVENT_IDX;
const ACKNOWLEDGE: u8 = bit(VIRTIO_CONFIG_S_ACKNOWLEDGE);
const DRIVER: u8 = bit(VIRTIO_CONFIG_S_DRIVER);

fn device() -> Transport {
    Transport::new(OFFERED, 2, 256, 3)
}

fn read_u16(transport: &Transport, offset: usize) -> u16 {
    u16::from_le_bytes(transport.read()[offset..offset + 2].try_into().unwrap())
}

fn status(transport: &Transport) -> u8 {
    transport.read()[at::DEVICE_STATUS]
}

fn agree(transport: &mut Transport, features: u64) {
    transport.write(at::DEVICE_STATUS, &[ACKNOWLEDGE | DRIVER]);
    for (select, bits) in (0_u32..).zip(features.to_le_bytes().chunks(4)) {
        transport.write(at::DRIVER_FEATURE_SELECT, &select.to_le_bytes());
        transport.write(at::DRIVER_FEATURE, bits);
    }
    transport.write(at::DEVICE_STATUS, &[ACKNOWLEDGE | DRIVER | FEATURES_OK]);
}

fn enable(transport: &mut Transport, queue: u16, size: u16, descriptors: u64) {
    transport.write(at::QUEUE_SELECT, &queue.to_le_bytes());
    transport.write(at::QUEUE_SIZE, &size.to_le_bytes());
    transport.write(at::QUEUE_VECTOR, &1_u16.to_le_bytes());
    transport.write(at::QUEUE_DESC, &descriptors.to_le_bytes()[..4]);
    transport.write(at::QUEUE_DESC + 4, &descriptors.to_le_bytes()[4..]);
    transport.write(at::QUEUE_DRIVER, &0x2002_u64.to_le_bytes());
    transport.write(at::QUEUE_DEVICE, &0x3004_u64.to_le_bytes());
    transport.write(at::QUEUE_ENABLE, &[1, 0]);
}

fn start(transport: &mut Transport) -> Option<Event> {
    transport.write(at::DEVICE_STATUS, &[ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK])
}

#[test]
fn driver_that_does_it_right_activates_its_queues() {
    let mut transport = device();
    agree(&mut transport, OFFERED);
    enable(&mut transport, 1, 64, 0x1_0000_1000);
    let setup = QueueSetup {
        size: 64,
        descriptors: 0x1_0000_1000,
        driver_area: 0x2002,
        device_area: 0x3004,
        vector: Some(MsixVector(1)),
    };
    let activation = Activation { features: OFFERED, queues: vec![(QueueIndex(1), setup)] };
    assert_eq!(start(&mut transport), Some(Event::Activated(activation)));
    assert_eq!(start(&mut transport), None, "once");
    assert_eq!(transport.write(at::DEVICE_STATUS, &[0]), Some(Event::Reset));
    assert_eq!(transport, device());
    assert_eq!(transport.write(at::DEVICE_STATUS, &[0]), None, "nothing to stop");
}

#[test]
fn features_not_offered_or_of_a_legacy_driver_are_refused() {
    for features in [OFFERED | 1 << 5, OFFERED & !F_VERSION_1, 0] {
        let mut transport = device();
        agree(&mut transport, features);
        assert_eq!(status(&transport), ACKNOWLEDGE | DRIVER);
        assert_eq!(start(&mut transport), None);
        assert_eq!(status(&transport) & DRIVER_OK, 0);
    }
}

#[test]
fn what_is_agreed_or_enabled_stays_until_reset() {
    let mut transport = device();
    agree(&mut transport, OFFERED);
    enable(&mut transport, 0, 128, 0x1000);
    enable(&mut transport, 0, 64, 0x5000);
    transport.write(at::DRIVER_FEATURE_SELECT, &[0; 4]);
    transport.write(at::DRIVER_FEATURE, &[0; 4]);
    let Some(Event::Activated(activation)) = start(&mut transport) else { panic!() };
    assert_eq!(activation.features, OFFERED);
    assert_eq!((activation.queues[0].1.size, activation.queues[0].1.descriptors), (128, 0x1000));
    enable(&mut transport, 1, 64, 0x5000);
    assert_eq!(read_u16(&transport, at::QUEUE_ENABLE), 0, "too late");
    // Clearing bits of the status does nothing (2.1.1).
    transport.write(at::DEVICE_STATUS, &[ACKNOWLEDGE]);
    assert_ne!(status(&transport) & DRIVER_OK, 0);
}

#[test]
fn queue_enabled_with_nonsense_makes_the_device_need_a_reset() {
    for (size, descriptors) in [(0, 0x1000), (48, 0x1000), (512, 0x1000), (64, 0x1008)] {
        let mut transport = device();
        agree(&mut transport, OFFERED);
        enable(&mut transport, 0, size, descriptors);
        assert_ne!(status(&transport) & NEEDS_RESET, 0, "{size} {descriptors:#x}");
        assert_eq!(read_u16(&transport, at::QUEUE_ENABLE), 0);
        assert_eq!(start(&mut transport), None);
    }
}

#[test]
fn vectors_and_queues_that_do_not_exist_read_as_none() {
    let mut transport = device();
    for (written, read) in [(2_u16, 2), (3, NO_VECTOR), (NO_VECTOR, NO_VECTOR)] {
        transport.write(at::CONFIG_VECTOR, &written.to_le_bytes());
        transport.write(at::QUEUE_VECTOR, &written.to_le_bytes());
        assert_eq!(read_u16(&transport, at::CONFIG_VECTOR), read);
        assert_eq!(read_u16(&transport, at::QUEUE_VECTOR), read);
    }
    transport.write(at::QUEUE_SELECT, &2_u16.to_le_bytes());
    assert_eq!(read_u16(&transport, at::QUEUE_SIZE), 0);
    assert_eq!(read_u16(&transport, at::NUM_QUEUES), 2);
}

#[test]
fn changes_are_told_only_to_a_driver_that_listens() {
    let mut transport = device();
    transport.write(at::CONFIG_VECTOR, &0_u16.to_le_bytes());
    assert_eq!(transport.config_vector(), None);
    agree(&mut transport, OFFERED);
    start(&mut transport);
    assert_eq!(transport.config_vector(), Some(MsixVector(0)));
    transport.next_generation();
    assert_eq!(transport.read()[at::CONFIG_GENERATION], 1);
    assert_eq!((transport.set_needs_reset(), transport.set_needs_reset()), (true, false));
    transport.write(at::DEVICE_STATUS, &[0]);
    assert_eq!((status(&transport), transport.read()[at::CONFIG_GENERATION]), (0, 1));
    // A worker that broke while the driver reset the device says so late.
    assert!(!transport.set_needs_reset());
    assert_eq!(status(&transport), 0, "Linux waits for that without end");
    agree(&mut transport, OFFERED);
    assert!(start(&mut transport).is_some());
}

proptest! {
    #[test]
    fn any_writes_keep_the_promises_of_an_activation(
        writes in prop::collection::vec(
            (0_usize..64, prop::sample::select(vec![1_usize, 2, 4, 8]), any::<[u8; 8]>(), any::<bool>()),
            0..200,
        ),
    ) {
        let mut transport = device();
        let mut active = false;
        for (offset, width, bytes, sane) in writes {
            // Half of the writes go to a status that leads somewhere.
            let event = if sane {
                let status = [0, 3, 11, 15, 0x4f][usize::from(bytes[0] % 5)];
                transport.write(at::DRIVER_FEATURE_SELECT, &1_u32.to_le_bytes());
                transport.write(at::DRIVER_FEATURE, &1_u32.to_le_bytes());
                transport.write(at::DEVICE_STATUS, &[status])
            } else {
                transport.write(offset, &bytes[..width])
            };
            match event {
                Some(Event::Activated(activation)) => {
                    prop_assert!(!active);
                    active = true;
                    prop_assert_eq!(activation.features & !OFFERED, 0);
                    prop_assert_ne!(activation.features & F_VERSION_1, 0);
                    for (index, setup) in activation.queues {
                        prop_assert!(index.0 < 2 && setup.size.is_power_of_two() && setup.size <= 256);
                        prop_assert!(setup.descriptors % 16 == 0 && setup.device_area % 4 == 0);
                        prop_assert!(setup.vector.is_none_or(|vector| vector.0 < 3));
                    }
                }
                Some(Event::Reset) => {
                    prop_assert!(active);
                    active = false;
                }
                None => {}
            }
            prop_assert_eq!(transport.active(), active);
        }
    }
}
